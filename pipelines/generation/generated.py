"""What `bytelm generate` returns, besides texts."""

from typing import NotRequired, TypedDict


class Guesses(TypedDict):
    """The likeliest tokens at a mask, likeliest first."""

    position: int
    """Of the mask, in tokens"""
    tokens: list[str]
    probabilities: list[float]


class Candidate(TypedDict):
    """A token and its probability."""

    text: str
    id: int
    probability: float


class Step(Candidate):
    """The token that a step of generation chose."""

    candidates: list[Candidate]
    """The likeliest tokens at this step, likeliest first"""


class Generated(TypedDict):
    """A prompt, and the text that the model adds to it."""

    prompt: str
    text: str
    steps: NotRequired[list[Step]]
    """The choice of each token, if probabilities are asked for"""
