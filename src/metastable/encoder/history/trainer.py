"""The callback for the Trainer of transformers. Only `callback` imports this module, because it needs transformers."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from metastable.encoder.history.history import Guard, History


class HistoryCallback(TrainerCallback):
    """Keeps a `History` of the model that a Trainer trains; made by `callback`.

    history : the history; None before the training and if it could not be made
    """

    def __init__(self, texts: list[str], tokenizer: Any, out: str | Path | None, every: int, tensorboard: Any) -> None:
        self._texts, self._tokenizer, self._out = texts, tokenizer, out
        self._every, self._tensorboard = every, tensorboard
        self.history: History | None = None
        self._guard = Guard()

    @property
    def failures(self) -> int:
        """The number of errors inside the callback, which do not end the training."""
        return self._guard.count + (0 if self.history is None else self.history.failures)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, processing_class: Any = None, **rest: Any
    ) -> None:
        self.history = None
        # One process of many records; the others hold the same weights.
        if not state.is_world_process_zero:
            return
        with self._guard("the history of the training"):
            self.history = History(
                model,
                self._texts,
                tokenizer=self._tokenizer if self._tokenizer is not None else processing_class,
                out=Path(args.output_dir) / "metastable-history" if self._out is None else self._out,
                every=self._every,
                start=state.global_step,
                tensorboard=self._board(args),
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.history is not None:
            self.history.step(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.history is not None:
            with self._guard("the page of the history"):
                self.history.write_page()

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        if self.history is None:
            return
        with self._guard("the page of the history"):
            # The Trainer has put the weights of an earlier step back by now: they are not those of the last step.
            if args.load_best_model_at_end:
                self.history.write_page()
            else:
                self.history.report()

    def _board(self, args: Any) -> Any:
        """The folder for TensorBoard beside the Trainer's own, if the Trainer uses it."""
        wanted = "tensorboard" in (args.report_to or ()) and find_spec("tensorboard") is not None
        own = Path(args.output_dir) / "runs" / "metastable" if wanted else None
        return own if self._tensorboard is None else self._tensorboard
