"""A Bayesian adapter: LoRA weights with a posterior, and the mutual information of every character.

    python examples/adapters.py

A small GPT-2 is made from its configuration and learns the prose inside Python, the docstrings of the
standard library. It is then frozen, and a LoRA adapter with a posterior learns source code. Where the
adapter's samples disagree, more code like that would change its mind.
Requires `pip install transformers peft`. Nothing is downloaded.
"""

import argparse
import copy
import inspect
import os
import random
import textwrap
import warnings

import torch
from peft import LoraConfig, get_peft_model
from rich.progress import track
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import bayesrnn

LENGTH = 64  # characters of a passage
VOCABULARY = 128  # ASCII
MODULES = (argparse, inspect, os, random, textwrap, warnings)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=400, help="training steps of each stage")
    parser.add_argument("--out", default="adapter.safetensors", help="where the adapter goes")
    options = parser.parse_args()
    torch.manual_seed(0)
    prose, code = texts()
    held_out = slice(-8 * LENGTH, None)

    network = language_model()
    train(network, prose, options.steps, lr=3e-3)
    network.requires_grad_(False)

    model = with_adapter(copy.deepcopy(network))
    posterior = bayesrnn.Posterior(model, bayesrnn.Normal(0.1))
    train(model, code, options.steps, lr=1e-2, posterior=posterior)

    passage = code[held_out]
    order = torch.randperm(len(passage), generator=torch.Generator().manual_seed(0))
    print(f"{posterior}\n")
    shuffled = passage[order]
    for name, text in [("code", passage), ("prose", prose[held_out]), ("shuffled", shuffled)]:
        found = predict(posterior, text)
        nats = -found.log_prob(text.view(-1, LENGTH)[:, 1:])
        print(
            f"{name:9} {nats.mean():.2f} nats, mutual information "
            f"{found.mutual_information.mean():.4f} nats a character"
        )
    show(passage[:LENGTH], predict(posterior, passage[:LENGTH]).mutual_information[0])

    posterior.save(options.out, frozen=False)
    again = bayesrnn.Posterior.load(options.out, with_adapter(network))
    assert torch.equal(again.mu, posterior.mu)
    assert torch.equal(again.rho, posterior.rho)
    whole = sum(tensor.numel() * tensor.element_size() for tensor in network.state_dict().values())
    size = os.path.getsize(options.out)
    print(f"\nwrote {options.out}: {size / 1024:.0f} kB; the network has {whole / 1024:.0f} kB")


def texts() -> tuple[Tensor, Tensor]:
    """The docstrings and the source of some modules, as ASCII."""
    members = [m for module in MODULES for m in vars(module).values() if hasattr(m, "__doc__")]
    prose = "\n\n".join(sorted({inspect.getdoc(member) or "" for member in members}))
    code = "\n".join(inspect.getsource(module) for module in MODULES)
    return as_tokens(prose), as_tokens(code)


def as_tokens(text: str) -> Tensor:
    return torch.tensor([byte for byte in text.encode() if byte < VOCABULARY])


def language_model() -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=64,
        n_layer=2,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def with_adapter(network: GPT2LMHeadModel) -> nn.Module:
    config = LoraConfig(r=8, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    return get_peft_model(network, config)


def train(
    model: nn.Module,
    text: Tensor,
    steps: int,
    *,
    lr: float,
    posterior: bayesrnn.Posterior | None = None,
) -> None:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=lr)
    text = text[: -8 * LENGTH]
    model.train()
    for _ in track(range(steps), description="training"):
        starts = torch.randint(len(text) - LENGTH, (16, 1))
        passages = text[starts + torch.arange(LENGTH)]
        optimizer.zero_grad()
        if posterior is None:
            loss(model, passages).backward()
        else:
            with posterior.sample() as draw:
                loss(model, passages).backward()
            posterior.accumulate_grad(draw, kl_weight=1 / len(text))
        optimizer.step()


def loss(model: nn.Module, passages: Tensor) -> Tensor:
    """Mean nats of each character after the first."""
    logits = model(input_ids=passages).logits[:, :-1]
    return nn.functional.cross_entropy(logits.flatten(0, 1), passages[:, 1:].flatten())


def predict(posterior: bayesrnn.Posterior, text: Tensor) -> bayesrnn.Categorical:
    """The distribution of each character after the first of each passage."""
    return bayesrnn.predict(
        posterior,
        input_ids=text.view(-1, LENGTH),
        samples=20,
        read=lambda output: output.logits[:, :-1],
    )


def show(text: Tensor, information: Tensor) -> None:
    """A passage, with a mark under the tenth of its characters that the samples disagree most about."""
    least = information.quantile(0.9)
    marks = [" ", *("^" if value >= least else " " for value in information)]
    characters = ["\u00b7" if chr(token) in "\n\r\t" else chr(token) for token in text]
    print(f"\n{''.join(characters)}\n{''.join(marks)}  most mutual information")


if __name__ == "__main__":
    main()
