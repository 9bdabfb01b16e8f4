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
        config = changed(optimizer={"type": "AdamW", "params": {"betas": ["auto", 0.95], "lr": None}})
        self.assertEqual(from_deepspeed(config)["betas"], (0.9, 0.95))

    def test_what_is_not_looked_at(self):
        config = changed(train_batch_size=7, mystery={"x": [1]}, zero_optimization={"stage": 9, "cpu_offload": True})
        self.assertEqual(from_deepspeed(config)["offload_ratio"], 1.0)

    def test_threads(self):
        offload = {"device": "cpu", "cpuadam_cores_perc": 0.5}
        threads = from_deepspeed(changed(zero_optimization={"offload_optimizer": offload}))["threads"]
        self.assertEqual(threads, max(1, len(os.sched_getaffinity(0)) // 2))

    def test_refusals(self):
        for config, message in (
            (changed(fp16={"enabled": True}), "fp16.enabled is true: .* set it to false and bf16.enabled to true"),
            (changed(bf16={"enabled": True, "bf16_optimizer_states": True}), "bf16_optimizer_states is true: "),
            (changed(optimizer={"type": "Lamb"}), 'optimizer.type is "Lamb": only AdamW is implemented'),
            (changed(optimizer={"params": {"lr": 1e-3}}), "optimizer.params has no effect without optimizer.type"),
            (changed(optimizer={"type": "Adam", "params": {"adam_w_mode": False}}), "adam_w_mode is false: "),
            (changed(optimizer={"type": "Adam", "params": {"learning_rate": 1}}), 'unknown key "learning_rate" in opt'),
            (changed(optimizer={"type": "Adam", "params": {"max_grad_norm": 1}}), "move the value to gradient_clipping"),
            (changed(gradient_clipping="1.0"), 'gradient_clipping must be a number, is "1.0"'),
            (changed(zero_optimization={"offload_optimizer": {"device": "nvme"}}), "offload to NVMe is not implemented"),
            (changed(zero_optimization={"offload_optimizer": {"ratio": 2}}), "offload_optimizer.ratio: 2 is "),
            (changed(zero_optimization=[1]), "zero_optimization must be an object, is "),
            (changed(gradient_clipping=object()), "gradient_clipping must be a number, is "),
            ([], "the DeepSpeed configuration: must be a JSON object, is array"),
            ("/no/such/ds.json", "^/no/such/ds.json is no DeepSpeed configuration: .*No such file"),
        ):
            with self.subTest(message), self.assertRaisesRegex(superoffload.UserError, message):
                from_deepspeed(config)


if __name__ == "__main__":
    unittest.main()
