#!/usr/bin/env python3
"""Sends what a run recorded (metrics.jsonl) to Weights & Biases or to MLflow.

    python3 scripts/send_metrics.py wandb out --project my-project
    python3 scripts/send_metrics.py mlflow out --experiment my-experiment

The run's options become its config or parameters, steps and evaluations its metrics, the summary's figures its summary.
Needs `pip install wandb`, or `pip install mlflow` (mlflow-skinny does too). WANDB_MODE=offline and MLFLOW_TRACKING_URI
work as always. A run that goes on is sent up to where it is.
"""
import argparse
import importlib.util
import json
import math
import pathlib
import sys


def read(directory):
    """The lines of a run's record; the last one may still be being written."""
    path = pathlib.Path(directory) / "metrics.jsonl"
    if not path.is_file():
        raise SystemExit(f"{path} is not there; give the --output_dir of a run")
    lines = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                break
            try:
                lines.append(json.loads(line))
            except ValueError:
                raise SystemExit(f"{path}:{number} is no JSON; mend or move the file away")
    return lines


def numbers(line, name=""):
    """The finite numbers of a line: {"train/loss": 2.1, "train/device_seconds/work": 0.8}."""
    found = {}
    for key, value in line.items():
        if isinstance(value, dict):
            found |= numbers(value, f"{name}{key}/")
        elif isinstance(value, (int, float)) and math.isfinite(value):
            found[name + key] = value
    return found


def points(lines):
    """(step, numbers) of each step and evaluation, in order."""
    for line in lines:
        if "loss" in line:
            yield line["step"], numbers({k: v for k, v in line.items() if k != "step"}, "train/")
        elif "eval_loss" in line:
            yield line["step"], numbers({"loss": line["eval_loss"]}, "eval/")


def to_wandb(name, settings, lines, summary, project):
    import wandb
    run = wandb.init(project=project, name=name, config=settings)
    for step, values in points(lines):
        run.log(values, step=step)
    run.summary.update(summary)
    run.finish()


def to_mlflow(name, settings, lines, summary, experiment):
    import mlflow
    if experiment:
        mlflow.set_experiment(experiment)
    from mlflow.entities import Metric, Param
    with mlflow.start_run(run_name=name) as run:
        client = mlflow.MlflowClient()
        listed = [Param(key, value[:6000]) for key, value in settings.items()]
        for i in range(0, len(listed), 100):  # MLflow's limits on one call
            client.log_batch(run.info.run_id, params=listed[i:i + 100])
        start = next((line["start"]["time"] for line in lines if "start" in line), 0)
        metrics, seconds = [], start
        for step, values in points(lines):
            seconds += values.get("train/step_time_s", 0)
            metrics += [Metric(key, value, int(seconds * 1000), step) for key, value in values.items()]
        metrics += [Metric(f"summary/{key}", value, int(seconds * 1000), 0) for key, value in summary.items()]
        for i in range(0, len(metrics), 1000):
            client.log_batch(run.info.run_id, metrics=metrics[i:i + 1000])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", choices=["wandb", "mlflow"])
    parser.add_argument("directory", help="--output_dir of a run")
    parser.add_argument("--project", help="of W&B")
    parser.add_argument("--experiment", help="of MLflow")
    given = parser.parse_args()
    if importlib.util.find_spec(given.to) is None:
        sys.exit(f"send_metrics: {given.to} is not installed: pip install {given.to}")
    lines = read(given.directory)
    starts = [line["start"] for line in lines if "start" in line]
    settings = {s["name"]: s["value"] for s in starts[-1]["settings"]} if starts else {}
    ends = [line for line in lines if "summary" in line]
    summary = numbers({"plan": ends[-1]["summary"], "run": ends[-1].get("run", {})}) if ends else {}
    name = pathlib.Path(given.directory).resolve().name
    if given.to == "wandb":
        to_wandb(name, settings, lines, summary, given.project)
    else:
        to_mlflow(name, settings, lines, summary, given.experiment)


if __name__ == "__main__":
    main()
