"""Steering λ inside a stock Hugging Face Trainer."""

from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState


class SteerCallback(TrainerCallback, ExportableState):
    """For Hugging Face's Trainer: moves λ after every optimizer step, towards the target sparsity or along a schedule.

        trainer = Seq2SeqTrainer(model=model, ..., callbacks=[SteerCallback()])

    It adds `lambda` and `sparsity` (the mean over the training batches since the last entry) to the Trainer's logs:
    `trainer.state.log_history`, the printed lines, and callbacks that come after this one.

    The schedule's state is saved with the Trainer's, so a resumed run continues with the same λ, even where the Trainer
    does not restore callbacks (`restore_callback_states_from_checkpoint=False`, its default).
    """

    def __init__(self) -> None:
        self.saved: dict[str, Any] | None = None
        self._since_last_log: list[float] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        gated = _unwrapped(model)
        if not hasattr(gated, "steer"):
            raise TypeError(
                f"SteerCallback: {type(gated).__name__} has no gate to steer; pass the Trainer the model "
                "that l0drop.sparsify returned"
            )
        stored = state.stateful_callbacks.get(type(self).__name__, {})
        saved = self.saved or stored.get("attributes", {}).get("saved")
        if saved is not None:
            gated.schedule.load_state_dict(saved)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        gated = _unwrapped(model)
        sparsity = gated.training_sparsity()
        gated.steer(sparsity)
        self.saved = gated.schedule.state_dict()
        if sparsity is not None:
            self._since_last_log.append(sparsity)

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, Any] | None = None,
        model: Any = None,
        **kwargs: Any,
    ) -> None:
        if logs is None or "loss" not in logs:  # evaluation and the summary at the end are logged too
            return
        added = {"lambda": _unwrapped(model).lambda_}
        if self._since_last_log:
            added["sparsity"] = sum(self._since_last_log) / len(self._since_last_log)
            self._since_last_log = []
        logs.update(added)
        state.log_history[-1].update(added)  # the Trainer has copied the entry before it calls callbacks

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"saved": self.saved}}


def _unwrapped(model: Any) -> Any:
    from accelerate.utils import extract_model_from_parallel  # a Trainer needs accelerate, `import l0drop` does not

    return extract_model_from_parallel(model, keep_torch_compile=False)
