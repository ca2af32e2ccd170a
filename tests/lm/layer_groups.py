"""Groups of layers with the same weights, for drawn configurations."""

from dataclasses import replace


def with_groups(config, groups):
    """Return `config` with groups of layers that share weights, or unchanged if it cannot have them."""
    try:
        return replace(config, layer_groups=groups)
    except ValueError:
        return config
