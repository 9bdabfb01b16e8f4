"""superoffload.AdamW in the trainers that people have, against torch.optim.AdamW in the same ones."""
import contextlib
import importlib.util
import json
import os
import tempfile
import unittest
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
try:
    import torch
    from torch import nn

    import superoffload
except ImportError as error:
    raise unittest.SkipTest(f"{error}; the integrations' tests need PyTorch") from error

DEVICE = "cuda" if os.environ.get("SO_TEST_DEVICE") == "cuda" else "cpu"
STEP = 1e-6  # as in optimizer_models.py


def silenced(test):
    """Trainers print what they log."""
    stack = contextlib.ExitStack()
    test.addCleanup(stack.close)
    nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
    stack.enter_context(contextlib.redirect_stdout(nowhere))
    stack.enter_context(contextlib.redirect_stderr(nowhere))
    stack.enter_context(warnings.catch_warnings())
    warnings.simplefilter("ignore")


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return unittest.skipIf(missing, f"needs {', '.join(missing)}")


def language_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=67,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    )


def records(count=24, length=12):
    generator = torch.Generator().manual_seed(4)
    rows = torch.randint(67, (count, length), generator=generator).tolist()
    return [{"input_ids": row, "labels": row, "attention_mask": [1] * length} for row in rows]


def difference(one, other):
    pairs = zip(one.parameters(), other.parameters())
    return max((p.detach().float() - q.detach().float()).abs().max().item() for p, q in pairs)


class Clipping(unittest.TestCase):
    """torch.nn.utils.clip_grad_norm_ of parameters whose gradients are gone."""

    def pair(self):
        models = []
        for _ in range(2):
            torch.manual_seed(1)
            models.append(nn.Sequential(nn.Linear(9, 30), nn.Tanh(), nn.Linear(30, 2)).to(DEVICE))
        return models

    def backward(self, model, seed):
        x = torch.randn(8, 9, generator=torch.Generator().manual_seed(seed)).to(DEVICE)
        model(x).square().mean().backward()

    def test_a_loop_that_clips(self):
        for under_forward in (False, True):
            ours, theirs = self.pair()
            mine = superoffload.AdamW(ours.parameters(), lr=1e-3, under_forward=under_forward)
            other = torch.optim.AdamW(theirs.parameters(), lr=1e-3)
            for step in range(8):
                norms = []
                for model, optimizer in ((ours, mine), (theirs, other)):
                    for number in range(2):
                        self.backward(model, 10 * step + number)
                    norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.05))
                    optimizer.step()
                    optimizer.zero_grad()
                self.assertAlmostEqual(norms[0].item(), norms[1].item(), delta=1e-6)
                self.assertEqual(norms[0].device, norms[1].device)
                self.assertAlmostEqual(mine.grad_norm, norms[0].item(), delta=1e-6)
                self.assertLess(difference(ours, theirs), (step + 1) * STEP)
            self.assertEqual(mine.counters()["clipped_steps"], 8)

    def test_the_lesser_limit_holds_for_its_step(self):
        ours, theirs = self.pair()
        mine = superoffload.AdamW(ours.parameters(), lr=1e-3, max_grad_norm=0.05)
        other = superoffload.AdamW(theirs.parameters(), lr=1e-3)
        for step, limits in enumerate(((1.0, 0.05), (0.01, 0.01), (float("inf"), 0.05), (None, 0.05))):
            for model, optimizer, limit in ((ours, mine, limits[0]), (theirs, other, limits[1])):
                self.backward(model, step)
                if limit is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), limit)
                optimizer.step()
            self.assertEqual(difference(ours, theirs), 0)

    def test_more_gradients_after_it(self):
        ours, theirs = self.pair()
        mine, other = (superoffload.AdamW(m.parameters(), lr=1e-3, max_grad_norm=0.05) for m in (ours, theirs))
        for step in range(4):
            self.backward(ours, step)
            nn.utils.clip_grad_norm_(ours.parameters(), float("inf"))
            self.backward(ours, 100 + step)
            mine.step()
            for seed in (step, 100 + step):
                self.backward(theirs, seed)
            other.step()
            self.assertEqual(difference(ours, theirs), 0)

    def test_what_cannot_be(self):
        ours, theirs = self.pair()
        mine = superoffload.AdamW(ours.parameters())
        self.backward(ours, 0)
        clip = nn.utils.clip_grad_norm_
        with self.assertRaisesRegex(superoffload.UserError, "clips the 2-norm alone"):
            clip(ours.parameters(), 1.0, norm_type=1)
        with self.assertRaisesRegex(superoffload.UserError, "clip_grad_norm_ without parameter 2 of group 0"):
            clip(ours[0].parameters(), 1.0)
        with self.assertRaisesRegex(superoffload.UserError, "clip_grad_norm_ to 0: give a number above 0"):
            clip(ours.parameters(), 0)
        self.backward(theirs, 0)
        with self.assertRaisesRegex(superoffload.UserError, "and of others: call it for each by itself"):
            clip([*ours.parameters(), *theirs.parameters()], 1.0)
        other = superoffload.AdamW(theirs.parameters())
        with self.assertRaisesRegex(superoffload.UserError, "of the parameters of 2 optimizers"):
            clip([*ours.parameters(), *theirs.parameters()], 1.0)
        mine.zero_grad()
        self.assertEqual(clip(ours.parameters(), 1.0).item(), 0)
        ours[0].weight.grad = torch.full_like(ours[0].weight, float("inf"))
        with self.assertRaisesRegex(RuntimeError, "not finite"):
            clip(ours.parameters(), 1.0, error_if_nonfinite=True)
        mine.zero_grad()
        other.zero_grad()

    def test_other_parameters_are_clipped_as_ever(self):
        model, _ = self.pair()
        self.backward(model, 0)
        before = [p.grad.clone() for p in model.parameters()]
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        for p, gradient in zip(model.parameters(), before):
            self.assertTrue(torch.allclose(p.grad, gradient * (1e-3 / norm), rtol=1e-2))


@needs("transformers", "accelerate")
class TransformersTrainer(unittest.TestCase):
    def setUp(self):
        silenced(self)

    def trainer(self, folder, optimizer, cls=None, kwargs=None, **more):
        from transformers import Trainer, TrainingArguments

        settings = {"learning_rate": 1e-2, "max_steps": 6, "gradient_accumulation_steps": 2, "max_grad_norm": 0.5}
        settings |= {"weight_decay": 0.1} | more
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=2,
            logging_steps=1,
            save_steps=3,
            report_to=[],
            disable_tqdm=True,
            use_cpu=DEVICE == "cpu",
            seed=5,
            **settings,
        )
        if optimizer is not None:
            more = {"optimizer_cls_and_kwargs": (optimizer, {"lr": 1e-2} if kwargs is None else kwargs)}
        else:
            more = {}
        return (cls or Trainer)(model=language_model(), args=arguments, train_dataset=records(), **more)

    def test_the_trainers_arguments_count(self):
        """As for the Trainer's own AdamW."""
        settings = {"learning_rate": 3e-3, "adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-5, "max_steps": 3}
        with tempfile.TemporaryDirectory() as folder:
            ours = self.trainer(folder, superoffload.AdamW, kwargs={}, **settings)
            theirs = self.trainer(folder, None, optim="adamw_torch", **settings)
            for run in (ours, theirs):
                run.train()
            self.assertLess(difference(ours.model, theirs.model), 3 * 3 * STEP)
            for mine, other in zip(ours.optimizer.param_groups, theirs.optimizer.param_groups):
                for name in ("initial_lr", "lr", "betas", "eps", "weight_decay"):
                    self.assertEqual(mine[name], other[name], name)
                self.assertEqual(len(mine["params"]), len(other["params"]))
            # What the optimizer itself is given comes first, and is not told twice in silence.
            for kwargs, told in (
                ({"lr": 1e-2}, "TrainingArguments.learning_rate=0.003. has no effect"),
                ({"lr": 3e-3, "betas": (0.8, 0.99)}, "TrainingArguments.adam_beta2=0.95. has no effect"),
            ):
                run = self.trainer(folder, superoffload.AdamW, kwargs=kwargs, **settings)
                with self.assertWarnsRegex(UserWarning, told):
                    run.create_optimizer()
                self.assertEqual(run.optimizer.defaults["lr"], kwargs["lr"])
                self.assertEqual(run.optimizer.defaults["eps"], 1e-5)
            run = self.trainer(folder, superoffload.AdamW, kwargs={"lr": 1e-4}, max_steps=1, learning_rate=5e-5)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                run.create_optimizer()  # 5e-5 is what TrainingArguments have where nobody gives it
            # Elsewhere they are torch's, also where a Trainer is about.
            alone, torchs = (cls(language_model().parameters()) for cls in (superoffload.AdamW, torch.optim.AdamW))
            self.assertEqual(alone.defaults, torchs.defaults)

    def test_it_trains_as_with_torch(self):
        for checkpointing in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                runs = []
                for optimizer in (superoffload.AdamW, torch.optim.AdamW):
                    run = self.trainer(folder, optimizer, gradient_checkpointing=checkpointing)
                    run.train()
                    runs.append(run)
                ours, theirs = runs
                self.assertLess(difference(ours.model, theirs.model), 6 * 10 * STEP)  # lr is 1e-2
                self.assertIs(type(ours.optimizer.optimizer), superoffload.AdamW)
                self.assertEqual(ours.optimizer.param_groups[0]["weight_decay"], 0.1)
                logs = [[log for log in run.state.log_history if "grad_norm" in log] for run in runs]
                self.assertEqual(len(logs[0]), 6)
                for mine, other in zip(*logs):
                    self.assertAlmostEqual(mine["grad_norm"], other["grad_norm"], delta=1e-4)
                    self.assertGreater(mine["grad_norm"], 0.5)
                    self.assertAlmostEqual(mine["loss"], other["loss"], delta=1e-4)
                self.assertEqual(ours.optimizer.optimizer.counters()["clipped_steps"], 6)

    def test_a_run_that_stops_and_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            whole = self.trainer(folder, superoffload.AdamW)
            whole.train()
            resumed = self.trainer(folder, superoffload.AdamW)
            resumed.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-3"))
            self.assertEqual(resumed.state.global_step, 6)
            self.assertEqual(difference(whole.model, resumed.model), 0)


@needs("transformers", "accelerate")
class Recipe(unittest.TestCase):
    """recipes/pytorch_trainer.py, with a few records and steps."""

    def setUp(self):
        silenced(self)

    def test_it_learns(self):
        source = os.path.join(os.environ["SO_SOURCE_DIR"], "recipes", "pytorch_trainer.py")
        spec = importlib.util.spec_from_file_location("pytorch_trainer", source)
        recipe = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(recipe)
        with tempfile.TemporaryDirectory() as folder:
            data, config = os.path.join(folder, "data.jsonl"), os.path.join(folder, "ds.json")
            with open(data, "w", encoding="utf-8") as file:
                for number in range(16):
                    file.write(json.dumps({"instruction": f"Say {number}.", "input": "", "output": f"{number}"}) + "\n")
            with open(config, "w", encoding="utf-8") as file:
                json.dump({"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 0.5}}}, file)
            settings = ["--output_dir", os.path.join(folder, "out"), "--max_steps", "6", "--max_length", "24"]
            before, after = recipe.main([data, data, "--deepspeed", config, *settings])
            self.assertLess(after, before - 1)
            self.assertTrue(os.path.exists(os.path.join(folder, "out", "model.safetensors")))


@needs("trl", "transformers", "datasets")
class TrlTrainer(unittest.TestCase):
    def setUp(self):
        silenced(self)

    def test_it_trains_as_with_torch(self):
        import datasets
        from trl import SFTConfig, SFTTrainer

        with tempfile.TemporaryDirectory() as folder:
            runs = []
            for optimizer in (superoffload.AdamW, torch.optim.AdamW):
                arguments = SFTConfig(
                    folder,
                    learning_rate=1e-2,
                    max_steps=4,
                    per_device_train_batch_size=2,
                    logging_steps=1,
                    save_strategy="no",
                    report_to=[],
                    disable_tqdm=True,
                    use_cpu=DEVICE == "cpu",
                    max_grad_norm=0.5,
                    bf16=False,
                    seed=5,
                )
                run = SFTTrainer(
                    model=language_model(),
                    args=arguments,
                    train_dataset=datasets.Dataset.from_list([{"input_ids": r["input_ids"]} for r in records()]),
                    processing_class=word_tokenizer(),
                    optimizer_cls_and_kwargs=(optimizer, {"lr": 1e-2}),
                )
                run.train()
                runs.append(run)
            self.assertLess(difference(runs[0].model, runs[1].model), 4 * 10 * STEP)
            norms = [[log["grad_norm"] for log in run.state.log_history if "grad_norm" in log] for run in runs]
            self.assertEqual(len(norms[0]), 4)
            for mine, other in zip(*norms):
                self.assertAlmostEqual(mine, other, delta=1e-4)


def word_tokenizer():
    """A tokenizer of 67 made-up words, made here."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(67)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w1", pad_token="w2", unk_token="w0")


@needs("accelerate", "transformers")
class Accelerate(unittest.TestCase):
    def test_a_loop_with_an_accelerator(self):
        from accelerate import Accelerator

        models = []
        for make in (superoffload.AdamW, torch.optim.AdamW):
            accelerator = Accelerator(cpu=DEVICE == "cpu", gradient_accumulation_steps=2)
            model = language_model().to(DEVICE)
            optimizer = make(model.parameters(), lr=1e-3)
            loader = torch.utils.data.DataLoader(
                [{key: torch.tensor(value) for key, value in r.items()} for r in records()], batch_size=3
            )
            model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
            for rows in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(model(**rows).loss)
                    if accelerator.sync_gradients:
                        norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
                        self.assertGreater(norm.item(), 0.5)
                    optimizer.step()
                    optimizer.zero_grad()
            models.append(accelerator.unwrap_model(model))
        self.assertLess(difference(*models), 8 * STEP)


if __name__ == "__main__":
    unittest.main()
