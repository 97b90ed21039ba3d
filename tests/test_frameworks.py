"""A posterior in the frameworks people train with, by the recipes of docs/frameworks.md."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import bayesrnn
from tests import documents

os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported, which tests do

PAGE = documents.ROOT / "docs" / "frameworks.md"
FRAMEWORKS = ["plain loop", "Trainer", "Lightning", "accelerate"]
PRIOR = bayesrnn.Normal(1.0)
N, BATCH = 22, 4  # six minibatches, the last of two examples
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] * X[:, 1] > 0).long()
DATA = TensorDataset(X, Y)

pytestmark = [
    # Of Lightning, about torch; about the callback that wrote a checkpoint; and about its own modes.
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*"),
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty"),
    # Of transformers, about the loader that it makes itself.
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
]


# ---------------------------------------------------------------------- the page


def _recipe(section: str, *, blocks: int | None = None) -> dict[str, Any]:
    """What the setting, which has no heading, and the first blocks of a section define."""
    names: dict[str, Any] = {}
    setting, own = (documents.blocks(PAGE, "python", section=name) for name in ("", section))
    for block in [*setting, *own[:blocks]]:
        documents.run(block, names)
    return names


# ---------------------------------------------------------------------- one run in each framework


@dataclass
class Options:
    """How a run is trained, and what is wanted of it."""

    lr: float = 0.01
    accumulate: int = 2
    clip: float | None = None
    dropout: bool = True
    bf16: bool = False
    watch: Any = contextlib.nullcontext
    """A context manager around the training, called with the posterior."""


@dataclass
class Run:
    posterior: bayesrnn.Posterior
    optimizer: dict[str, Any]
    start: Tensor
    """rho at first."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the code of the page writes."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A function that imports a framework, quiet and with no state of earlier tests, or skips."""

    def need(name: str) -> Any:
        module = pytest.importorskip(name)
        if name == "transformers":
            pytest.importorskip("accelerate")
            module.utils.logging.disable_progress_bar()
            monkeypatch.setattr(module.trainer, "DEFAULT_PROGRESS_CALLBACK", module.TrainerCallback)
            monkeypatch.setattr(module.trainer, "PrinterCallback", module.TrainerCallback)
        if name == "lightning":
            logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        _forget_accelerators()
        return module

    yield need
    _forget_accelerators()


def _forget_accelerators() -> None:
    """An Accelerator is shared by all that come after it in a process."""
    with contextlib.suppress(ImportError):
        from accelerate.state import AcceleratorState, GradientState

        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()


def _posterior(options: Options, model: nn.Module | None = None) -> bayesrnn.Posterior:
    model = _recipe("", blocks=0)["Net"]() if model is None else model
    posterior = bayesrnn.Posterior(model, PRIOR)
    return _set_up(posterior, options)


def _set_up(posterior: bayesrnn.Posterior, options: Options) -> bayesrnn.Posterior:
    for module in posterior.model.modules():
        if isinstance(module, nn.Dropout) and not options.dropout:
            module.p = 0.0
    return posterior


def plain_loop(folder: Path, until: int, options: Options, *, resume: bool = False) -> Run:
    posterior = _posterior(options)
    model = posterior.model.bfloat16() if options.bf16 else posterior.model
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)
    start, step, batch = posterior.rho.detach().clone(), 0, 0
    if resume:
        state = torch.load(folder / "checkpoint.pt")
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        step, batch = state["step"], state["batch"]
    with options.watch(posterior):
        while step < until:
            epoch, index = divmod(batch, -(-N // BATCH))
            order = torch.randperm(N, generator=torch.Generator().manual_seed(epoch))
            chosen = order.split(BATCH)[index]
            x = X[chosen].to(model.first.weight.dtype)
            with posterior.sample() as draw:
                loss = model(x, Y[chosen])["loss"]
                (loss / options.accumulate).backward()
            posterior.accumulate_grad(draw, kl_weight=1 / (N * options.accumulate))
            batch += 1
            last = index + 1 == -(-N // BATCH)
            if (index + 1) % options.accumulate == 0 or last:
                if options.clip:
                    nn.utils.clip_grad_norm_(model.parameters(), options.clip)
                optimizer.step()
                model.zero_grad()
                step += 1
    folder.mkdir(exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    state |= {"rng": torch.get_rng_state(), "step": step, "batch": batch}
    torch.save(state, folder / "checkpoint.pt")
    return Run(posterior, optimizer.state_dict(), start)


def trainer(folder: Path, until: int, options: Options, *, resume: bool = False) -> Run:
    import transformers

    posterior = _posterior(options)
    start = posterior.rho.detach().clone()
    runner = _trainer(
        posterior,
        N,
        [{"x": x, "labels": y} for x, y in DATA],
        transformers.TrainingArguments(
            str(folder), save_steps=until, max_steps=until, **_arguments(options)
        ),
    )
    with options.watch(posterior):
        runner.train(resume_from_checkpoint=resume or None)
    return Run(posterior, runner.optimizer.state_dict(), start)


def _trainer(posterior: bayesrnn.Posterior, n: int, data: Any, args: Any, **kwargs: Any) -> Any:
    kind = _recipe("Hugging Face Trainer", blocks=1)["BayesianTrainer"]
    return kind(posterior, n, args=args, train_dataset=data, **kwargs)


def _arguments(options: Options) -> dict[str, Any]:
    return {
        "per_device_train_batch_size": BATCH,
        "gradient_accumulation_steps": options.accumulate,
        "learning_rate": options.lr,
        "lr_scheduler_type": "constant",
        "max_grad_norm": options.clip or 0.0,
        "bf16": options.bf16,
        "use_cpu": True,
        "disable_tqdm": True,
        "report_to": "none",
        "logging_strategy": "no",
    }


class Resumable(DataLoader):
    """A loader that Lightning can resume within an epoch: it skips what was seen."""

    seen = skip = 0

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.skip = state["seen"]

    def __iter__(self) -> Iterator[Any]:
        skip, self.skip = self.skip, 0
        for self.seen, batch in enumerate(super().__iter__(), 1):
            if self.seen > skip:
                yield batch


def lightning(
    folder: Path,
    until: int,
    options: Options,
    *,
    resume: bool = False,
    loader: type[DataLoader] = Resumable,
    **kwargs: Any,
) -> Run:
    from lightning import Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    module = _recipe("Lightning", blocks=1)["Bayesian"](N, lr=options.lr)
    start = _set_up(module.posterior, options).rho.detach().clone()
    saving = ModelCheckpoint(folder, save_last=True, every_n_train_steps=1)
    runner = Trainer(
        default_root_dir=folder,
        max_steps=until,
        accumulate_grad_batches=options.accumulate,
        gradient_clip_val=options.clip,
        callbacks=[saving],
        precision="bf16-true" if options.bf16 else "32-true",
        **{"accelerator": "cpu", "devices": 1, "logger": False},
        **{"enable_progress_bar": False, "enable_model_summary": False},
    )
    data = loader(DATA, batch_size=BATCH, sampler=DistributedSampler(DATA, num_replicas=1, rank=0))
    with options.watch(module.posterior):
        runner.fit(module, data, ckpt_path=folder / "last.ckpt" if resume else None)
    return Run(module.posterior, runner.optimizers[0].state_dict(), start)


def accelerate(folder: Path, until: int, options: Options, *, resume: bool = False) -> Run:
    from accelerate import Accelerator, DataLoaderConfiguration

    _forget_accelerators()
    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=options.accumulate,
        mixed_precision="bf16" if options.bf16 else "no",
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True, data_seed=0),
    )
    posterior = _posterior(options)
    start = posterior.rho.detach().clone()
    model, optimizer, loader = accelerator.prepare(
        posterior.model,
        torch.optim.Adam(posterior.model.parameters(), lr=options.lr),
        DataLoader(DATA, batch_size=BATCH, shuffle=True, generator=torch.Generator()),
    )
    step = seen = 0
    if resume:
        accelerator.load_state(folder / "state")
        state = torch.load(folder / "progress.pt")
        step, seen = state["step"], state["seen"]
    with options.watch(posterior):
        while step < until:
            epoch, skip = divmod(seen, len(loader))
            loader.set_epoch(epoch)
            for x, y in accelerator.skip_first_batches(loader, skip):
                with accelerator.accumulate(model):
                    with posterior.sample() as draw:
                        accelerator.backward(model(x, y)["loss"])
                    kl_weight = 1 / (N * accelerator.gradient_accumulation_steps)
                    posterior.accumulate_grad(draw, kl_weight=kl_weight)
                    if options.clip and accelerator.sync_gradients:
                        accelerator.clip_grad_norm_(model.parameters(), options.clip)
                    optimizer.step()
                    optimizer.zero_grad()
                seen += 1
                step += accelerator.sync_gradients
                if step == until:
                    break
    accelerator.save_state(folder / "state")
    torch.save({"step": step, "seen": seen}, folder / "progress.pt")
    return Run(posterior, optimizer.state_dict(), start)


RUNS = {
    "plain loop": (plain_loop, None),
    "Trainer": (trainer, "transformers"),
    "Lightning": (lightning, "lightning"),
    "accelerate": (accelerate, "accelerate"),
}


@pytest.fixture
def run(request: pytest.FixtureRequest, frameworks: Any) -> Any:
    """The function that trains in the framework of the parameter."""
    function, needed = RUNS[request.param]
    if needed:
        frameworks(needed)
    return function


# ---------------------------------------------------------------------- resuming


@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("run", FRAMEWORKS, indirect=True)
def test_a_run_resumed_within_an_epoch_ends_as_the_uninterrupted_one(run, bf16, tmp_path):
    """To the last bit, with shuffled data, dropout and gradient accumulation: three steps an epoch."""
    _check_resuming(run, tmp_path, interrupted_at=4, options=Options(bf16=bf16))


@pytest.mark.parametrize("run", ["Lightning"], indirect=True)
def test_lightning_resumes_ordinary_loaders_at_the_end_of_an_epoch(run, tmp_path):
    run = functools.partial(run, loader=DataLoader)
    _check_resuming(run, tmp_path, interrupted_at=3, options=Options())


def _check_resuming(run: Any, folder: Path, *, interrupted_at: int, options: Options) -> None:
    torch.manual_seed(0)
    whole = run(folder / "whole", 8, options)
    torch.manual_seed(0)
    first = run(folder / "parts", interrupted_at, options)
    torch.manual_seed(7)  # other weights, other noise: all has to come from the files
    second = run(folder / "parts", 8, options, resume=True)
    assert not torch.equal(second.start, whole.start)
    assert ((whole.posterior.rho - whole.start).abs() > 1e-3).float().mean() > 0.9
    assert not torch.equal(first.posterior.rho, whole.posterior.rho)
    assert torch.equal(second.posterior.mu, whole.posterior.mu)
    assert torch.equal(second.posterior.rho, whole.posterior.rho)
    assert whole.posterior.rho.dtype == torch.float32
    for name, tensor in whole.posterior.model.state_dict().items():
        assert torch.equal(second.posterior.model.state_dict()[name], tensor), name
    states = whole.optimizer["state"], second.optimizer["state"]
    assert len(states[0]) == 4  # mu, rho, the gain and the bias of the norm
    torch.testing.assert_close(*states, rtol=0, atol=0)
    assert {state["step"].item() for state in states[1].values()} == {8}


# ---------------------------------------------------------------------- the gradient of a step


@dataclass
class Step:
    calls: list[tuple[Tensor, tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)
    """For each minibatch the weights and what the model was called with."""
    gradients: dict[str, Tensor] = field(default_factory=dict)


class Watch:
    """What happens in a training: the calls of the model, the gradients of each step of the optimiser."""

    def __init__(self) -> None:
        self.steps = [Step()]

    @contextlib.contextmanager
    def __call__(self, posterior: bayesrnn.Posterior) -> Iterator[None]:
        model = posterior.model

        def called(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            weights = [_attribute(model, slot.name).flatten() for slot in posterior.layout]
            self.steps[-1].calls.append((torch.cat(weights).detach().double(), args, dict(kwargs)))

        def stepped(*_: Any) -> None:
            named = model.named_parameters()
            self.steps[-1].gradients = {name: p.grad.clone() for name, p in named}
            self.steps.append(Step())

        hooks = [
            model.register_forward_pre_hook(called, with_kwargs=True),
            register_optimizer_step_post_hook(stepped),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            self.steps.pop()


def _attribute(model: nn.Module, name: str) -> Tensor:
    path, _, attribute = name.rpartition(".")
    return getattr(model.get_submodule(path), attribute)


def _gradient(
    posterior: bayesrnn.Posterior, plain: nn.Module, step: Step, n: int, loss: Any
) -> Any:
    """Of loss(outputs of the minibatches) + KL / n, by autograd, for mu, rho and ordinary parameters."""
    state = posterior.model.state_dict()
    plain.load_state_dict({name: state[name] for name in plain.state_dict()})
    plain = plain.double()
    mu, rho = (v.detach().double().requires_grad_() for v in (posterior.mu, posterior.rho))
    sigma = nn.functional.softplus(rho)
    outputs = []
    for theta, args, kwargs in step.calls:
        eps = ((theta - mu) / sigma).detach()
        weights = posterior.named(mu + sigma * eps)
        args = [arg.double() if arg.is_floating_point() else arg for arg in args]
        kwargs = {k: v.double() if v.is_floating_point() else v for k, v in kwargs.items()}
        outputs.append(torch.func.functional_call(plain, weights, tuple(args), kwargs))
    kl = (-sigma.log() + (sigma.square() + mu.square() - 1) / 2).sum()  # to N(0, 1)
    named = dict(plain.named_parameters())
    ordinary = {k: named[k] for k in step.gradients if k in named}
    parameters = {"posterior_mu": mu, "posterior_rho": rho, **ordinary}
    gradients = torch.autograd.grad(loss(outputs) + kl / n, list(parameters.values()))
    return dict(zip(parameters, gradients, strict=True))


def _norm(gradients: dict[str, Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradients.values()]).norm()


def _mean_of_means(outputs: list[dict[str, Tensor]]) -> Tensor:
    return torch.stack([output["loss"] for output in outputs]).mean()


@pytest.mark.parametrize("clip", [None, 0.05], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("run", FRAMEWORKS, indirect=True)
def test_the_gradient_of_a_step_is_that_of_its_mean_loss_and_one_nth_of_the_kl(run, clip, tmp_path):
    """With four minibatches to a step, and two in the last one of an epoch: one of them is smaller."""
    watch = Watch()
    options = Options(lr=0.0, accumulate=4, clip=clip, dropout=False, watch=watch)
    posterior = run(tmp_path / "run", 4, options).posterior
    assert [len(step.calls) for step in watch.steps] == [4, 2, 4, 2]
    net = _recipe("", blocks=0)["Net"]
    for step in watch.steps:
        noises = {theta[0].item() for theta, *_ in step.calls}
        assert len(noises) == len(step.calls)  # each minibatch has its own
        expected = _gradient(posterior, net().eval(), step, N, _mean_of_means)
        # All but the Trainer divide by four in the last step too, the loss and the KL alike.
        scale = 1.0 if run is trainer else len(step.calls) / 4
        if clip is not None:
            norm = scale * _norm(expected)
            assert norm > 2 * clip
            scale *= clip / norm
        assert step.gradients.keys() == expected.keys()
        for name, gradient in step.gradients.items():
            torch.testing.assert_close(
                gradient.double(), scale * expected[name], rtol=1e-3, atol=1e-6
            )


def _language_model(kind: str = "GPT2LMHeadModel", *, tie: bool = True) -> Any:
    transformers = pytest.importorskip("transformers")
    common = {"vocab_size": 11, "bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": tie}
    if kind == "LlamaForCausalLM":
        sizes = {"hidden_size": 8, "intermediate_size": 8, "max_position_embeddings": 8}
        heads = {"num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.LlamaConfig(**sizes, **heads, **common)
    else:
        sizes = {"n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 2}
        rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(**sizes, **rates, **common)
    return getattr(transformers, kind)(config)


@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "gradient checkpointing"])
@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_a_language_model_whose_loss_the_trainer_divides_by_its_labels(
    kind, checkpointing, tmp_path, frameworks
):
    transformers = frameworks("transformers")
    transformers.utils.logging.set_verbosity_error()  # about the name of GPT-2's loss
    tokens = torch.randint(11, (10, 6), generator=torch.Generator().manual_seed(0))
    labels = tokens.clone()
    for row, length in enumerate([6, 2, 4, 6, 3, 6, 5, 2, 6, 4]):
        labels[row, length:] = -100
    # The Trainer knows models "ForCausalLM": no label is predicted by the word before the first.
    counted = labels[:, 1:] if kind == "LlamaForCausalLM" else labels
    n = (counted != -100).sum().item()
    posterior = bayesrnn.Posterior(_language_model(kind), PRIOR)
    arguments = {**_arguments(Options(lr=0.0)), "gradient_checkpointing": checkpointing}
    runner = _trainer(
        posterior,
        n,
        [{"input_ids": t, "labels": y} for t, y in zip(tokens, labels, strict=True)],
        transformers.TrainingArguments(
            str(tmp_path), num_train_epochs=1, save_strategy="no", **arguments
        ),
    )
    watch = Watch()
    with watch(posterior):
        runner.train()
    assert [len(step.calls) for step in watch.steps] == [2, 1]
    items = [step.calls[0][2]["num_items_in_batch"].item() for step in watch.steps]
    assert sum(items) == n
    for step, count in zip(watch.steps, items, strict=True):

        def loss(outputs: list[Any], step: Step = step, count: int = count) -> Tensor:
            each = [
                nn.functional.cross_entropy(
                    output.logits[:, :-1].transpose(1, 2), kwargs["labels"][:, 1:], reduction="sum"
                )
                for output, (*_, kwargs) in zip(outputs, step.calls, strict=True)
            ]
            return torch.stack(each).sum() / count

        expected = _gradient(posterior, _language_model(kind), step, n, loss)
        for name, gradient in step.gradients.items():
            torch.testing.assert_close(gradient.double(), expected[name], rtol=1e-3, atol=1e-5)


def test_lightning_with_gradient_checkpointing_keeps_the_block_open(tmp_path, frameworks):
    frameworks("lightning")
    from lightning import Trainer
    from torch.utils.checkpoint import checkpoint

    names = _recipe("Lightning", blocks=1)

    class Checkpointed(names["Bayesian"]):
        def on_train_batch_start(self, batch, batch_idx):
            torch.manual_seed(self.trainer.fit_loop.total_batch_idx)
            self.block = contextlib.ExitStack()
            self.draw = self.block.enter_context(self.posterior.sample())

        def training_step(self, batch, batch_idx):
            inputs, labels = batch
            return checkpoint(self.model, inputs, labels, use_reentrant=False)["loss"]

        def on_after_backward(self):
            self.block.close()
            super().on_after_backward()

    found = []
    for kind in (names["Bayesian"], Checkpointed):
        torch.manual_seed(0)
        module = kind(N)
        off = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        runner = Trainer(
            max_epochs=2, accelerator="cpu", devices=1, enable_checkpointing=False, **off
        )
        runner.fit(module, DataLoader(DATA, batch_size=BATCH))
        found.append(torch.stack([module.posterior.mu, module.posterior.rho]))
    assert torch.equal(*found)


# ---------------------------------------------------------------------- low precision


@pytest.mark.parametrize("run", FRAMEWORKS, indirect=True)
def test_steps_too_small_for_bf16_move_rho(run, tmp_path):
    done = run(tmp_path / "run", 6, Options(lr=1e-4, bf16=True))
    posterior = done.posterior
    moved = (posterior.rho.detach() - done.start).abs()
    assert posterior.mu.dtype == posterior.rho.dtype == torch.float32
    assert (moved > 1e-5).float().mean() > 0.9
    assert moved.max() < 1e-3  # the spacing of bf16 numbers is 1/128 there
    x = X.to(posterior.model.get_submodule("first").weight.dtype)
    probs = bayesrnn.predict(posterior, x, samples=3).probs
    torch.testing.assert_close(probs.sum(-1), torch.ones(N))


@pytest.mark.parametrize("how", ["autocast", "bf16 model"])
def test_predictions_in_bf16_are_distributions_and_as_uncertain_as_in_float32(how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1000))
    posterior = bayesrnn.Posterior(model, PRIOR, sigma_init=0.5)
    right = bayesrnn.predict(posterior, X, samples=8)
    if how == "autocast":
        with torch.autocast("cpu", torch.bfloat16):
            assert model(X).dtype == torch.bfloat16
            found = bayesrnn.predict(posterior, X, samples=8)
    else:
        model.bfloat16()
        found = bayesrnn.predict(posterior, X.bfloat16(), samples=8)
    assert found.probs.dtype == torch.float32
    torch.testing.assert_close(found.probs.sum(-1), torch.ones(N), rtol=0, atol=1e-5)
    assert right.mutual_information.min() > 0.2
    close = {"rtol": 0.02, "atol": 0.0}
    torch.testing.assert_close(found.mutual_information, right.mutual_information, **close)
    torch.testing.assert_close(found.entropy, right.entropy, **close)


# ---------------------------------------------------------------------- files


def _moved(model: nn.Module) -> bayesrnn.Posterior:
    """A posterior that no fresh one can be taken for."""
    posterior = bayesrnn.Posterior(model, PRIOR)
    with torch.no_grad():
        for parameter in posterior.parameters():
            parameter.add_(torch.randn_like(parameter))
    return posterior


def _check_file(posterior: bayesrnn.Posterior, *files: Path) -> None:
    """The files list every mean, every rho and every ordinary parameter, each once."""
    tensors = [item for file in files for item in safetensors.torch.load_file(file).items()]
    slots = {slot.name for slot in posterior.layout}
    flat = {id(posterior.mu), id(posterior.rho)}
    ordinary = {n: p for n, p in posterior.model.named_parameters() if id(p) not in flat}
    names = [name for name, _ in tensors]
    assert sorted(names) == sorted([*slots, *(f"posterior_rho.{s}" for s in slots), *ordinary])
    found = dict(tensors)
    for name in slots:
        assert torch.equal(found[name], posterior.named(posterior.mu)[name])
        assert torch.equal(found[f"posterior_rho.{name}"], posterior.named(posterior.rho)[name])
    for name, parameter in ordinary.items():
        assert torch.equal(found[name], parameter)


def _check_same(found: bayesrnn.Posterior, saved: bayesrnn.Posterior) -> None:
    for ours, theirs in zip(found.parameters(), saved.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(found.model.eval()(X), saved.model.eval()(X))


def _net() -> nn.Module:
    return _recipe("", blocks=0)["Net"]()


def test_safetensors(tmp_path):
    saved, path = _moved(_net()), tmp_path / "model.safetensors"
    safetensors.torch.save_model(saved.model, path)
    _check_file(saved, path)
    found = bayesrnn.Posterior(_net(), PRIOR)
    assert safetensors.torch.load_model(found.model, path) == (set(), [])
    _check_same(found, saved)
    safetensors.torch.save_model(_net(), path)  # an ordinary model: no sigma
    with (
        pytest.warns(UserWarning, match="this state has no posterior_rho"),
        pytest.raises(RuntimeError, match='Missing.*"posterior_rho.first.bias"'),
    ):
        safetensors.torch.load_model(found.model, path)


@pytest.mark.parametrize("shard", ["10GB", 300], ids=["one file", "shards"])
@pytest.mark.filterwarnings("ignore:this state has no posterior_rho")  # see the test below
def test_accelerate_save_model(shard, tmp_path, frameworks):
    saved, found = _through_accelerate(frameworks, tmp_path, shard)
    files = sorted(tmp_path.glob("*.safetensors"))
    assert len(files) == (1 if shard == "10GB" else 4)
    _check_file(saved, *files)
    _check_same(found, saved)


def test_no_warning_when_rho_is_in_another_shard(tmp_path, frameworks):
    _through_accelerate(frameworks, tmp_path, 300)


def _through_accelerate(
    frameworks: Any, folder: Path, shard: str | int
) -> tuple[bayesrnn.Posterior, bayesrnn.Posterior]:
    """A posterior that was saved, and a fresh one with what was loaded."""
    accelerate = frameworks("accelerate")
    saved, found = _moved(_net()), bayesrnn.Posterior(_net(), PRIOR)
    accelerate.Accelerator(cpu=True).save_model(saved.model, folder, max_shard_size=shard)
    # Of shards each lacks the others' names.
    accelerate.load_checkpoint_in_model(found.model, folder, strict=shard == "10GB")
    return saved, found


def test_trainer_save_model(tmp_path, frameworks):
    transformers = frameworks("transformers")
    saved = _moved(_net())
    args = transformers.TrainingArguments(str(tmp_path), **_arguments(Options()))
    _trainer(saved, N, None, args).save_model(tmp_path / "final")
    _check_file(saved, tmp_path / "final" / "model.safetensors")
    found = bayesrnn.Posterior(_net(), PRIOR)
    safetensors.torch.load_model(found.model, tmp_path / "final" / "model.safetensors")
    _check_same(found, saved)


def test_the_trainer_ends_with_its_best_model(tmp_path, frameworks):
    transformers = frameworks("transformers")
    posterior, states = _posterior(Options()), []

    def first_is_best(_: Any) -> dict[str, float]:
        states.append({k: v.clone() for k, v in posterior.model.state_dict().items()})
        return {"earliness": -len(states)}

    wanted = {"load_best_model_at_end": True, "metric_for_best_model": "earliness"}
    args = transformers.TrainingArguments(
        str(tmp_path),
        max_steps=6,
        save_steps=2,
        eval_steps=2,
        eval_strategy="steps",
        **wanted,
        **_arguments(Options()),
    )
    data = [{"x": x, "labels": y} for x, y in DATA]
    more = {"eval_dataset": data, "compute_metrics": first_is_best}
    _trainer(posterior, N, data, args, **more).train()
    assert len(states) == 3
    rho = posterior.named(posterior.rho)["last.bias"]
    assert torch.equal(rho, states[0]["posterior_rho.last.bias"])
    assert not torch.equal(rho, states[-1]["posterior_rho.last.bias"])
    for name, tensor in posterior.model.state_dict().items():
        assert torch.equal(tensor, states[0][name]), name


@pytest.mark.parametrize("tie", [False, True], ids=["untied", "tied"])
def test_save_pretrained_and_from_pretrained(tie, tmp_path, frameworks, caplog):
    transformers = frameworks("transformers")
    saved = _moved(_language_model(tie=tie))
    saved.model.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    if not tie:
        _check_file(saved, path)
    means = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    tokens = torch.randint(11, (3, 6))
    assert torch.equal(means(tokens).logits, saved.model.eval()(tokens).logits)
    found = bayesrnn.Posterior(means, PRIOR)
    assert torch.equal(found.mu, saved.mu)
    safetensors.torch.load_model(means, path)
    assert torch.equal(found.mu, saved.mu)
    assert torch.equal(found.rho, saved.rho)


def test_a_tied_weight_is_written_once(tmp_path, frameworks):
    frameworks("transformers")
    saved = _moved(_language_model(tie=True))
    saved.model.save_pretrained(tmp_path)
    _check_file(saved, tmp_path / "model.safetensors")


def test_the_hub(tmp_path, frameworks):
    hub = frameworks("huggingface_hub")
    kind = _recipe("The Hub")["HubNet"]
    saved = kind(prior_sigma=0.5).posterior
    with torch.no_grad():
        for parameter in saved.parameters():
            parameter.add_(torch.randn_like(parameter))
    saved.model.save_pretrained(tmp_path)
    _check_file(saved, tmp_path / "model.safetensors")
    found = kind.from_pretrained(tmp_path, strict=True).posterior
    assert found.prior == bayesrnn.Normal(0.5)
    _check_same(found, saved)

    class Plain(_recipe("")["Net"], hub.PyTorchModelHubMixin):
        pass

    with pytest.raises(RuntimeError, match='Unexpected.*"posterior_rho.first.bias"'):
        Plain.from_pretrained(tmp_path, strict=True)


def test_lightning_load_from_checkpoint(tmp_path, frameworks):
    frameworks("lightning")
    from lightning import Trainer

    kind = _recipe("Lightning", blocks=1)["Bayesian"]
    module = kind(N, prior_sigma=0.5)
    off = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    runner = Trainer(max_epochs=1, accelerator="cpu", devices=1, enable_checkpointing=False, **off)
    runner.fit(module, DataLoader(DATA, batch_size=BATCH))
    runner.save_checkpoint(tmp_path / "module.ckpt")
    found = kind.load_from_checkpoint(tmp_path / "module.ckpt")
    assert found.hparams == {"n": N, "prior_sigma": 0.5, "lr": 0.01}
    assert found.posterior.prior == bayesrnn.Normal(0.5)
    assert found.posterior.model is found.model
    _check_same(found.posterior, module.posterior)
    state = torch.load(tmp_path / "module.ckpt")["state_dict"]
    assert state.keys() == module.state_dict().keys()
    assert torch.equal(
        state["model.posterior_rho.last.bias"],
        module.posterior.named(module.posterior.rho)["last.bias"],
    )


@pytest.mark.xfail(
    strict=True, raises=AttributeError, reason="a name of the state leads through a parameter"
)
def test_the_state_of_distributed_checkpoints():
    from torch.distributed.checkpoint.state_dict import get_model_state_dict

    posterior = _moved(_net())
    assert get_model_state_dict(posterior.model).keys() == posterior.model.state_dict().keys()
