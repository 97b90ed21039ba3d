"""A Bayesian adapter: LoRA on a frozen language model, with a distribution over the adapter's weights.

    python examples/adapters.py

A small GPT-2 learns prose, the docstrings of Python's standard library, and is then frozen. An adapter learns
code, the source of a few of its modules. The mutual information says of each character how uncertain the
adapter's weights leave it: the part of the uncertainty that more code would remove.
Requires `pip install transformers peft`. Nothing is downloaded.
"""

import argparse
import ast
import copy
import math
import os
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from rich.progress import track
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

import bayesrnn

LENGTH = 64  # characters that the model sees at once
MODULES = ["argparse", "configparser", "tarfile", "zipfile"]
SHOWN = 6  # pieces of code


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=600, help="training steps on prose")
    parser.add_argument("--passes", type=int, default=5, help="passes of the adapter over the code")
    parser.add_argument("--out", type=Path, default=Path(), help="the folder of the files")
    options = parser.parse_args()
    torch.manual_seed(0)

    pretrained = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=128,
            n_positions=LENGTH,
            n_embd=64,
            n_layer=2,
            n_head=4,
            initializer_range=0.1,
            **dict.fromkeys(["resid_pdrop", "embd_pdrop", "attn_pdrop"], 0.0),
            **dict.fromkeys(["bos_token_id", "eos_token_id"], 0),
        )
    )
    prose, code = pieces(docstrings()), pieces("".join(map(source, MODULES)))
    train(pretrained, None, prose[100:], passes=..., lr=0.01)

    lora = LoraConfig(r=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    model = get_peft_model(copy.deepcopy(pretrained), lora)  # freezes all but the adapter
    posterior = bayesrnn.Posterior(model, bayesrnn.Normal(0.1))
