"""`Batching`: how an epoch is cut into steps, and these into batches."""

from __future__ import annotations

from dataclasses import dataclass

from windrow.shuffle.order.balance import Balance


@dataclass(frozen=True)
class Batching:
    """What all shards have to say alike of the batches of an epoch; as text, the arguments of ``iter_*``.

    ``size`` is the rows of a batch, with packing its sequences; where steps end by their tokens, about how many.
    """

    size: int
    drop_last: bool = False
    balance: Balance | None = None

    def __str__(self) -> str:
        if self.balance is None:
            return f"batch_size={self.size}, drop_last={self.drop_last}"
        budget = self.balance.budget
        size = f"batch_size={self.size}" if budget is None else f"token_budget={budget}"
        grouped = "" if self.balance.group_steps is None else f", group_by_length={self.balance.group_steps}"
        return f"{size}, drop_last={self.drop_last}, balance={self.balance}{grouped}"
