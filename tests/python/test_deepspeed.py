"""from_deepspeed(): the arguments that a DeepSpeed configuration stands for."""
import json
import os
import pathlib
import tempfile
import unittest

import superoffload
from superoffload import from_deepspeed

CONFIG = {
    "train_micro_batch_size_per_gpu": "auto",
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    "optimizer": {"type": "AdamW", "params": {"lr": 2e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}},
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": True, "ratio": 0.9, "super_offload": True},
    },
}


def changed(**sections):
    return {**CONFIG, **sections}


class FromDeepSpeed(unittest.TestCase):
    def test_all_that_is_said(self):
        expected = {
            "lr": 2e-5,
            "betas": (0.9, 0.95),
            "eps": 1e-8,
            "weight_decay": 0.1,
            "max_grad_norm": 1.0,
            "offload_ratio": 0.9,
        }
        self.assertEqual(from_deepspeed(CONFIG), expected)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "ds.json"
            path.write_text(json.dumps(CONFIG))
            self.assertEqual(from_deepspeed(path), expected)
            self.assertEqual(from_deepspeed(str(path)), expected)

    def test_files_as_deepspeed_reads_them(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "ds.json"
            path.write_text("{\n  # comment\n  gradient_clipping: 0.5 // more\n  \"train_batch_size\": 8,\n}\n")
            self.assertEqual(from_deepspeed(path), {"max_grad_norm": 0.5, "offload_ratio": 0.0})
            for text, message in (
                ("{\n  gradient_clipping 1\n}", "ds.json:2:3: not valid JSON: "),
                ("compute_environment: LOCAL_MACHINE\n", "compute_environment is a key of Accelerate"),
                ("[]", "must be a JSON object, is array"),
            ):
                path.write_text(text)
                with self.subTest(text), self.assertRaisesRegex(superoffload.UserError, message):
                    from_deepspeed(path)

    def test_what_is_absent_is_as_in_deepspeed(self):
        self.assertEqual(from_deepspeed({}), {"max_grad_norm": 0.0, "offload_ratio": 0.0})
        params = from_deepspeed({"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}})
        self.assertEqual((params["lr"], params["weight_decay"]), (1e-3, 0.0))

    def test_auto_is_left_out(self):
        config = changed(
            gradient_clipping="auto",
            optimizer={"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "weight_decay": "auto"}},
            zero_optimization={"offload_optimizer": {"device": "cpu", "ratio": "auto"}},
        )
        self.assertEqual(from_deepspeed(config), {})

    def test_threads(self):
        offload = {"device": "cpu", "cpuadam_cores_perc": 0.5}
        threads = from_deepspeed(changed(zero_optimization={"offload_optimizer": offload}))["threads"]
        self.assertEqual(threads, max(1, len(os.sched_getaffinity(0)) // 2))

    def test_refusals(self):
        for config, message in (
            (changed(fp16={"enabled": True}), 'fp16.enabled is true: .* set "bf16" instead'),
            (changed(optimizer={"type": "Lamb"}), "optimizer.type is 'Lamb'"),
            (changed(optimizer={"type": "Adam", "params": {"adam_w_mode": False}}), "adam_w_mode is not true"),
            (changed(optimizer={"type": "Adam", "params": {"learning_rate": 1}}), "learning_rate is unknown: known are"),
            (changed(gradient_clipping="1.0"), "gradient_clipping is '1.0': give a number"),
            (changed(zero_optimization={"offload_optimizer": {"device": "nvme"}}), "in host memory here"),
            (changed(zero_optimization=[1]), "zero_optimization is .*: it is to be a JSON object"),
            ([], "is a JSON object, and this is list"),
            ("/no/such/ds.json", "^/no/such/ds.json is no DeepSpeed configuration: .*No such file"),
        ):
            with self.subTest(message), self.assertRaisesRegex(superoffload.UserError, message):
                from_deepspeed(config)


if __name__ == "__main__":
    unittest.main()
