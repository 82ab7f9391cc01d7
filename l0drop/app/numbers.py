"""Lists of numbers on the command line."""

from decimal import Decimal, InvalidOperation

MOST = 1000
"""Values that a range may have; more are taken for a typing error."""


def listed(text: str, option: str) -> list[float]:
    """The numbers in `0.1,0.5`, in `0.1:1.5:0.1` (first, last, step; the last is included), or in a mix of both."""
    numbers: dict[float, None] = {}
    for part in text.split(","):
        try:
            ends = [Decimal(end.strip()) for end in part.split(":")]
            if len(ends) not in (1, 3) or not all(end.is_finite() for end in ends):
                raise InvalidOperation
        except InvalidOperation:
            raise ValueError(
                f"{option}: {part!r} is neither a number nor FIRST:LAST:STEP, such as 0.1:1.5:0.1"
            ) from None
        first, last, step = ends if len(ends) == 3 else (ends[0], ends[0], Decimal(1))
        if step <= 0 or last < first:
            raise ValueError(
                f"{option}: {part!r} has no values: the last number should not be below the first, and the step above 0"
            )
        if last - first > MOST * step:
            raise ValueError(f"{option}: {part!r} has more than {MOST} values")
        # in decimals, so that 0.1:0.3:0.1 has 0.3 in it
        numbers |= dict.fromkeys(float(first + i * step) for i in range(int((last - first) / step) + 1))
    return list(numbers)
