"""superoffload.AdamW in two processes, of FSDP2's shards and of DistributedDataParallel, against torch.optim.AdamW."""
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

# First: it skips the tests where there is no PyTorch.
from optimizer_models import DEVICE

import torch
from torch import distributed

PROCESSES = 2
SCRIPT = pathlib.Path(__file__).with_name("optimizer_ranks.py")


@unittest.skipUnless(distributed.is_available(), "PyTorch was built without its distributed package")
@unittest.skipIf(DEVICE.type == "cuda" and torch.cuda.device_count() < PROCESSES, f"needs {PROCESSES} GPUs")
class Ranks(unittest.TestCase):
    def test_all_cases(self):
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        with tempfile.TemporaryDirectory() as folder:
            outputs = [open(pathlib.Path(folder) / f"rank{rank}.txt", "w+") for rank in range(PROCESSES)]
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-X", "faulthandler", str(SCRIPT)]
                    + [str(rank), str(PROCESSES), f"{folder}/meeting"],
                    env=environment | {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(PROCESSES)},
                    stdout=output, stderr=subprocess.STDOUT,
                )
                for rank, output in enumerate(outputs)
            ]
            until = time.monotonic() + 300
            while any(rank.poll() is None for rank in ranks) and not any(rank.poll() for rank in ranks):
                if time.monotonic() > until:
                    break
                time.sleep(0.1)
            for rank in ranks:  # one that has failed leaves the others waiting
                if rank.poll() is None:
                    rank.send_signal(signal.SIGABRT)  # it says where it was
            for rank in ranks:
                try:
                    rank.wait(20)
                except subprocess.TimeoutExpired:
                    rank.kill()
                    rank.wait()
            texts = []
            for output in outputs:
                output.seek(0)
                texts.append(output.read())
                output.close()
        self.assertEqual([rank.returncode for rank in ranks], [0] * PROCESSES, "\n".join(texts))
        self.assertEqual(texts[0].count("passed "), 6, texts[0])


if __name__ == "__main__":
    unittest.main()
