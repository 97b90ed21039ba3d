"""Training a language model, to the end or until stopped; resumed, it goes on bit for bit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from bayesrnn.data.corpus import Corpus
from bayesrnn.data.cuts import Cuts
from bayesrnn.evaluation.perplexity import perplexity
from bayesrnn.gradients import total_norm
from bayesrnn.methods import SharpenedLearner
from bayesrnn.storage import load_tensors, save_tensors
from bayesrnn.training import Diverged
from bayesrnn.training.run import Run

STEPS_BETWEEN_METRICS = 100
VALIDATION_STREAMS = 10


@dataclass(frozen=True)
class Progress:
    """Where training stands after a step."""

    epoch: int
    cut: int
    perplexity: float
    kl_per_word: float | None
    measured: tuple[dict[str, Any], ...] = ()
    """The lines that the step has added to the metrics."""


@dataclass
class _Position:
    """The place in training, with all that a checkpoint must remember beside tensors."""

    epoch: int = 0
    cut: int = 0
    nats: float = 0.0  # of the epoch so far, at the scale of the loss
    steps: int = 0  # time steps of the epoch so far
    recent_nats: float = 0.0  # since the last line of metrics
    recent_steps: int = 0
    kl_theta: float = 0.0  # of the epoch so far, in nats
    best: float = math.inf
    best_epoch: int = 0


class Trainer:
    """Trains a run. Iterate over `run()`; set `stop` to end after the current step with a checkpoint."""

    def __init__(self, run: Run, corpus: Corpus, *, checkpoint_minutes: float = 10.0) -> None:
        config = run.config
        self.run_folder = run
        self.config = config
        self.valid = corpus.valid
        self.cuts = Cuts(corpus.train, num_streams=config.batch_size, unroll=config.unroll)
        self.train_tokens = len(corpus.train)
        self.words = self.cuts.stream_length * config.batch_size
        self.learner = run.new_learner()
        self.parameters = list(self.learner.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=config.lr)
        self.noise = torch.Generator().manual_seed(config.seed + 1)
        self.checkpoint_seconds = 60 * checkpoint_minutes
        self.stop = False
        self._at = _Position()
        self._running = False
        self._measured: list[dict[str, Any]] = []
        self._kl_per_word: float | None = None
        self._dropout_rng = torch.Generator().manual_seed(config.seed + 2).get_state()

    @property
    def finished(self) -> bool:
        at, config = self._at, self.config
        tired = config.patience > 0 and at.epoch - at.best_epoch >= config.patience
        return at.epoch >= config.epochs or (at.epoch > 0 and tired)

    @property
    def position(self) -> tuple[int, int]:
        """Epochs done, and cuts of the present one."""
        return self._at.epoch, self._at.cut

    @property
    def best(self) -> tuple[float, int]:
        """The best validation perplexity and its epoch, counted from 1."""
        return self._at.best, self._at.best_epoch

    def run(self) -> Iterator[Progress]:
        """Train; yields after each step. Ends when done, stopped, or out of patience."""
        outside = torch.get_rng_state()
        torch.set_rng_state(self._dropout_rng)
        self._running = True
        try:
            if self._at == _Position():  # a new run: from here on there is something to resume
                self.run_folder.truncate_metrics(0)
                self.save_checkpoint()
            yield from self._steps()
        except OSError as error:
            raise OSError(
                f"cannot write to {self.run_folder.folder}: {error}. The previous checkpoint is intact; make "
                "room and go on with --resume."
            ) from None
        finally:
            self._running = False
            self._dropout_rng = torch.get_rng_state()
            torch.set_rng_state(outside)

    def _steps(self) -> Iterator[Progress]:
        last_checkpoint = time.monotonic()
        timed_words, timed_seconds = 0, 0.0
        while not self.finished:
            clock = time.monotonic()
            perplexity_now, words = self._step()
            timed_seconds += time.monotonic() - clock
            timed_words += words
            epoch_over = self._at.cut == len(self.cuts)
            if epoch_over:
                self._end_epoch()
                timing = {"epoch": self._at.epoch, "seconds": timed_seconds, "words": timed_words}
                self.run_folder.append_timing(timing)
                timed_words, timed_seconds = 0, 0.0
            if epoch_over or time.monotonic() - last_checkpoint >= self.checkpoint_seconds:
                self.save_checkpoint()
                last_checkpoint = time.monotonic()
            measured = tuple(self._measured)
            self._measured.clear()
            yield Progress(
                self._at.epoch, self._at.cut, perplexity_now, self._kl_per_word, measured
            )
            if self.stop:
                self.save_checkpoint()
                return

    def _step(self) -> tuple[float, int]:
        """One cut; returns the perplexity since the last line of metrics, and the words of the cut."""
        at, cuts, learner = self._at, self.cuts, self.learner
        if at.cut == 0:
            cuts.state = None
            self.learner.model.train()
        lr = self.config.learning_rate(at.epoch)
        x, y = (tokens.long() for tokens in cuts[at.cut])
        self.optimizer.zero_grad()
        loss, cuts.state = learner.backward(
            lambda: learner.model.loss(x, y, cuts.state),  # type: ignore[operator]
            kl_weight=cuts.kl_weight,
            generator=self.noise,
        )
        norm = total_norm(self.parameters).item()
        nats = loss.item()
        if not (math.isfinite(norm) and math.isfinite(nats)):
            self._diverged(nats / len(x))
        for group in self.optimizer.param_groups:
            # A shorter step along the gradient is one along a shortened gradient, without rewriting it.
            group["lr"] = lr * min(1.0, self.config.clip / (norm + 1e-6))
        self.optimizer.step()
        learner.after_step(lr=lr, kl_weight=cuts.kl_weight, generator=self.noise)

        at.cut += 1
        at.nats += nats
        at.steps += len(x)
        at.recent_nats += nats
        at.recent_steps += len(x)
        if isinstance(learner, SharpenedLearner):
            at.kl_theta += learner.sharpened.kl_theta.item()
        recent = at.recent_nats / at.recent_steps
        if at.recent_steps > 20 * self.config.unroll and recent > 2 * math.log(self._vocabulary):
            self._diverged(recent)
        if at.cut % STEPS_BETWEEN_METRICS == 0:
            kl = learner.kl()
            self._kl_per_word = None if kl is None else kl / self.words
            self._measure(
                {
                    "kind": "step",
                    "step": at.epoch * len(cuts) + at.cut,
                    "epoch": at.epoch + at.cut / len(cuts),
                    "lr": lr,
                    "train_perplexity": math.exp(min(recent, 700)),
                    "kl_per_word": self._kl_per_word,
                }
            )
            at.recent_nats, at.recent_steps = 0.0, 0
        return math.exp(min(recent, 700)), x.numel()

    def _end_epoch(self) -> None:
        at, learner = self._at, self.learner
        learner.after_epoch()
        measured = perplexity(learner, self.valid, streams=VALIDATION_STREAMS)
        if not measured.value < self._vocabulary**2:
            self._diverged(measured.nats / measured.words)
        kl = learner.kl()
        at.epoch += 1
        metrics = {
            "kind": "epoch",
            "step": at.epoch * len(self.cuts),
            "epoch": at.epoch,
            "lr": self.config.learning_rate(at.epoch - 1),
            "train_perplexity": math.exp(min(at.nats / at.steps, 700)),
            "kl_per_word": None if kl is None else kl / self.words,
            "kl_theta_per_word": at.kl_theta / self.words,
            "valid_perplexity": measured.value,
        }
        self._measure(metrics)
        if measured.value < at.best:
            at.best, at.best_epoch = measured.value, at.epoch
            self.run_folder.save_weights(learner)
        at.cut, at.nats, at.steps, at.kl_theta = 0, 0.0, 0, 0.0
        at.recent_nats, at.recent_steps = 0.0, 0

    @property
    def _vocabulary(self) -> int:
        return len(self.run_folder.vocabulary)

    def _measure(self, metrics: dict[str, Any]) -> None:
        self.run_folder.append_metrics(metrics)
        self._measured.append(metrics)

    def _diverged(self, nats_per_word: float) -> NoReturn:
        at = self._at
        raise Diverged(
            f"training diverged in epoch {at.epoch + 1}, step {at.cut}: {nats_per_word:.3g} nats per word, "
            f"where a uniform guess has {math.log(self._vocabulary):.3g}. The last good checkpoint is kept "
            f"in {self.run_folder.folder}; start a new run with a lower --lr."
        )

    # ------------------------------------------------------------------ checkpoints

    def save_checkpoint(self) -> None:
        """Write the whole state of training; the old checkpoint stays if that fails."""
        tensors: dict[str, Tensor] = {
            "rng.noise": self.noise.get_state(),
            "rng.dropout": torch.get_rng_state() if self._running else self._dropout_rng,
            **{f"learner.{name}": tensor for name, tensor in self.learner.state_dict().items()},
        }
        if self.cuts.state is not None:
            tensors.update(zip(("state.h", "state.c"), self.cuts.state, strict=True))
        header = {
            "format": "bayesrnn-checkpoint-1",
            "position": vars(self._at),
            "metrics_size": self.run_folder.sync_metrics(),
            "train_tokens": self.train_tokens,
        }
        save_tensors(self.run_folder.checkpoint, tensors, header)

    def resume(self) -> None:
        """Go back to the run's last checkpoint."""
        for half_written in self.run_folder.folder.glob(".*"):
            half_written.unlink()  # left by a process that was killed
        if not self.run_folder.checkpoint.exists():
            raise ValueError(
                f"{self.run_folder.folder} has no checkpoint.safetensors to go on from; start a new run."
            )
        tensors, header = load_tensors(self.run_folder.checkpoint)
        if header.get("format") != "bayesrnn-checkpoint-1":
            raise ValueError(
                f"{self.run_folder.checkpoint} was written by another version of bayesrnn; use that one."
            )
        if header["train_tokens"] != self.train_tokens:
            raise ValueError(
                f"the training text has {self.train_tokens} tokens, and had {header['train_tokens']} when "
                "the run began; give the same text, or start a new run."
            )
        learner = {
            name.removeprefix("learner."): tensor
            for name, tensor in tensors.items()
            if name.startswith("learner.")
        }
        self.learner.load_state_dict(learner)
        self.noise.set_state(tensors["rng.noise"])
        self._dropout_rng = tensors["rng.dropout"]
        self.cuts.state = (tensors["state.h"], tensors["state.c"]) if "state.h" in tensors else None
        self._at = _Position(**header["position"])
        self.run_folder.truncate_metrics(header["metrics_size"])
