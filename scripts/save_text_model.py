#!/usr/bin/env python3
"""Saves the text model of a model of images and text, for example of Gemma 3 from 4B on, as a model by itself.

    python save_text_model.py MODEL_DIR TEXT_MODEL_DIR

Needs torch and transformers (tried with 5.23). Loading such a directory as the text model's class right away does not
do: transformers then finds no weights under the names it looks for and draws new ones.
"""
import pathlib
import shutil
import sys

import transformers

COPIED = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
          "chat_template.json", "generation_config.json", "added_tokens.json")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = map(pathlib.Path, sys.argv[1:])
    if target.exists():
        sys.exit(f"{target} exists; name a directory that does not")
    whole, info = transformers.AutoModelForImageTextToText.from_pretrained(source, dtype="auto", output_loading_info=True)
    if info["missing_keys"]:
        sys.exit(f"{source}: weights are missing: {sorted(info['missing_keys'])[:3]} ...")
    name = type(whole).__name__.replace("ForConditionalGeneration", "ForCausalLM")
    text = getattr(transformers, name)._from_config(whole.config.get_text_config(), dtype=whole.dtype)
    text.model = whole.model.language_model
    text.lm_head = whole.lm_head
    text.tie_weights()
    text.save_pretrained(target)
    for file in COPIED:
        if (source / file).exists():
            shutil.copy(source / file, target / file)
    print(f"{target}: {name}, {sum(p.numel() for p in text.parameters()):,} parameters")


if __name__ == "__main__":
    main()
