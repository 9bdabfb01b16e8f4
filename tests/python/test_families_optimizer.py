"""superoffload.AdamW under models that the native decoder does not know, against torch.optim.AdamW."""
import importlib.util
import os
import unittest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# First: it skips the tests where there is no PyTorch.
from optimizer_models import DEVICE, difference, small_units

import torch

import superoffload

STEPS = 20


def vision_language():
    """Pictures through a vision tower and a projection, into a language model."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    picture = 60
    vision = CLIPVisionConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                              image_size=16, patch_size=8, projection_dim=16)
    text = LlamaConfig(vocab_size=67, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4)
    model = LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=picture, vision_feature_layer=-1))

    def inputs(generator):
        words = torch.randint(50, (2, 9), generator=generator)
        patches = torch.full((2, (16 // 8) ** 2), picture)
        ids = torch.cat([words[:, :1], patches, words[:, 1:]], dim=1)
        return {"input_ids": ids, "labels": ids.masked_fill(ids == picture, -100),
                "pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}

    return model, inputs


def state_space():
    from transformers import MambaConfig, MambaForCausalLM

    model = MambaForCausalLM(
        MambaConfig(vocab_size=67, hidden_size=32, state_size=8, num_hidden_layers=2, time_step_rank=4, pad_token_id=0,
                    bos_token_id=0, eos_token_id=0))

    def inputs(generator):
        ids = torch.randint(67, (2, 12), generator=generator)
        return {"input_ids": ids, "labels": ids}

    return model, inputs


def encoder_decoder():
    from transformers import T5Config, T5ForConditionalGeneration

    model = T5ForConditionalGeneration(
        T5Config(vocab_size=67, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
                 decoder_start_token_id=0))

    def inputs(generator):
        return {"input_ids": torch.randint(67, (2, 12), generator=generator),
                "labels": torch.randint(67, (2, 7), generator=generator)}

    return model, inputs


@unittest.skipUnless(importlib.util.find_spec("transformers"), "needs transformers")
class OtherFamilies(unittest.TestCase):
    def setUp(self):
        small_units(self)

    def train(self, make, make_optimizer):
        torch.manual_seed(5)
        model, inputs = make()
        model.to(DEVICE).train()
        optimizer = make_optimizer(model)
        generator = torch.Generator().manual_seed(6)
        losses = []
        for _ in range(STEPS):
            batch = {name: tensor.to(DEVICE) for name, tensor in inputs(generator).items()}
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return model, losses

    def compare(self, make):
        settings = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.01}

        def ours(model):
            return superoffload.AdamW(model.parameters(), max_grad_norm=0.5, **settings)

        def torchs(model):
            optimizer = torch.optim.AdamW(model.parameters(), **settings)
            step = optimizer.step

            def clipped():
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                step()

            optimizer.step = clipped
            return optimizer

        model, losses = self.train(make, ours)
        expected_model, expected = self.train(make, torchs)
        for ours_loss, loss in zip(losses, expected):
            self.assertAlmostEqual(ours_loss, loss, delta=1e-5 * abs(loss))
        self.assertLess(losses[-1], losses[0])
        self.assertLess(difference(model, expected_model), 1e-4)

    def test_a_vision_language_model(self):
        self.compare(vision_language)

    def test_a_state_space_model(self):
        self.compare(state_space)

    def test_an_encoder_and_a_decoder(self):
        self.compare(encoder_decoder)


if __name__ == "__main__":
    unittest.main()
