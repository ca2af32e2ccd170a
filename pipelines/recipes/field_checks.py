"""Checks of the numbers in settings: ValueError names the field."""

from collections.abc import Callable


def require_positive(config: object, *names: str, option: bool = False) -> None:
    """Raise ValueError unless the fields are above 0; `option` as in `require`."""
    require(config, names, lambda value: value > 0, "be above 0", option)


def require_not_negative(config: object, *names: str, option: bool = False) -> None:
    """Raise ValueError if a field is negative; `option` as in `require`."""
    require(config, names, lambda value: value >= 0, "not be negative", option)


def require_seed(seed: int, name: str) -> None:
    """Raise ValueError, with `name`, unless a seed is in [0, 2^63)."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"{name} is {seed}, but must {'not be negative' if seed < 0 else 'be below 2^63'}")


def require(
    config: object, names: tuple[str, ...], holds: Callable[[float], bool], rule: str, option: bool = False
) -> None:
    """Raise ValueError if a field breaks a rule; `option`: whether fields are spelled as on the command line."""
    for name in names:
        value = getattr(config, name)
        if not holds(value):
            spelled = f"`{name}`" if option else f"train.{name}"
            raise ValueError(f"{spelled} is {value}, but must {rule}")
