"""The transformer as in the papers: one sequence, loops, float64, no code of the models under test.

Weights have the names of a model's `state_dict`. The formulas are those that `ModelConfig` names.
"""

import math

import torch

from lm.attention.patterns import attention_pattern
from tests.lm.attention_cases import in_pattern


def logits(config, weights, ids, source=None):
    """Return the logits (T, V) in float64 for ids (T,). An encoder-decoder also reads source (S,)."""
    model = Textbook(config, {name: weight.double() for name, weight in weights.items()})
    if config.architecture == "encoder-decoder":
        memory = model.stack("encoder", source, config.layers, causal=False)
        hidden = model.stack("decoder", ids, config.decoder_layers or config.layers, causal=True, memory=memory)
    else:
        causal = config.architecture == "decoder"
        hidden = model.stack(config.architecture, ids, config.layers, causal)
    return model.head(hidden)


class Textbook:
    def __init__(self, config, weights):
        self.config, self.weights = config, weights

    def stack(self, name, ids, layers, causal, memory=None):
        config, weights = self.config, self.weights
        x = weights["embedding.weight"][ids]
        if config.token_types:
            x = x + weights["token_types.weight"][0]
        if config.positions == "sinusoidal" or config.scaled_embedding:
            x = x * math.sqrt(config.width)
        if config.positions == "learned":
            x = x + weights[f"{name}.positional.learned.weight"][: len(ids)]
        if config.positions == "sinusoidal":
            x = x + sinusoids(len(ids), config.width)
        if config.embedding_norm:
            x = self.norm(f"{name}.embedding_norm", x)
        embedded = x
        for i in range(layers):
            if config.embedding_skips:
                kept, added = (weights[f"{name}.{which}_scales"][i] for which in ("residual", "embedding"))
                x = kept * x + added * embedded
            extra, table = None, min(i, layers - 1 - i)
            if table < config.value_embeddings:
                rows = weights[f"{name}.value_embeddings.{table}.weight"][ids]
                extra = weights[f"{name}.blocks.{i}.attention.value_scale"] * rows
            together = layers // config.layer_groups if config.layer_groups else 1
            x = self.block(name, i // together * together, x, causal, extra, memory)
        return self.norm(f"{name}.final_norm", x) if config.norm_position in ("pre", "branch", "sandwich") else x

    def block(self, stack, i, x, causal, extra, memory):
        name = f"{stack}.blocks.{i}"
        if self.config.residual == "parallel":
            read = self.norm_before(f"{name}.attention_norm", x)
            attended = self.self_attention(stack, name, read, causal, extra)
            return x + attended + self.mlp(f"{name}.mlp", self.norm(f"{name}.mlp_norm", x))
        x = self.sublayer(f"{name}.attention", x, lambda y: self.self_attention(stack, name, y, causal, extra))
        if memory is not None:
            x = self.sublayer(f"{name}.cross", x, lambda y: self.cross_attention(name, y, memory))
        if self.config.mlp:
            x = self.sublayer(f"{name}.mlp", x, lambda y: self.mlp(f"{name}.mlp", y))
        return x

    def sublayer(self, name, x, f):
        """Return the stream after the sub-layer f: the formulas of the papers that `ModelConfig` names."""
        norm = f"{name}_norm"
        kept = 0.0 if self.config.residual == "none" else 1.0
        if name.endswith("mlp") and not self.config.mlp_norm:
            return kept * (self.deepnorm_alpha(name) if self.config.norm_position == "deepnorm" else 1.0) * x + f(x)
        match self.config.norm_position:
            case "pre":
                return kept * x + f(self.norm_before(norm, x))
            case "post":
                return self.norm(norm, kept * x + f(x))
            case "branch":
                return kept * x + self.norm(norm, f(x))
            case "sandwich":
                return kept * x + self.norm(f"{name}_branch_norm", f(self.norm_before(norm, x)))
            case "deepnorm":
                return self.norm(norm, self.deepnorm_alpha(name) * x + f(x))
            case "rezero":
                return x + self.weights[f"{name}_scale"] * f(x)

    def deepnorm_alpha(self, name):
        """Wang et al. 2022, figure 2."""
        config = self.config
        n, m = config.layers, config.decoder_layers or config.layers
        if config.architecture != "encoder-decoder":
            return math.sqrt(math.sqrt(2 * n))
        if name.startswith("decoder"):
            return math.sqrt(math.sqrt(3 * m))
        return 0.81 * (n * n * n * n * m) ** 0.0625

    def norm_before(self, name, x):
        """After a norm of the embedding, the first attention has none (Warner et al. 2024)."""
        if self.config.embedding_norm and name == "encoder.blocks.0.attention_norm":
            return x
        return self.norm(name, x)

    def self_attention(self, stack, block, x, causal, extra):
        config, name = self.config, f"{block}.attention"
        q, k, v = (self.linear(f"{name}.{which}", x) for which in ("query", "key", "value"))
        v = v if extra is None else v + extra

        pattern = attention_pattern(config)

        def added(h, t, s, query):
            if pattern is not None and not in_pattern(pattern, t, s):
                return -math.inf
            if (causal and s > t) or (config.window and abs(t - s) >= config.window):
                return -math.inf
            if config.positions == "alibi":
                return -alibi_slope(h, config.heads) * abs(t - s)
            if config.positions == "relative-keys":  # Shaw et al. 2018, equation 4, for a_ij of keys alone
                farthest = config.relative_distance
                row = max(-farthest, min(farthest, s - t)) + farthest
                product = (query * self.weights[f"{name}.relative_keys.weight"][row]).sum().item()
                return product / math.sqrt(len(query)) if config.scaled_attention else product
            if config.positions != "relative":
                return 0.0
            bucket = t5_bucket(s - t, config.relative_buckets, config.relative_distance, causal)
            return self.weights[f"{stack}.relative.weight"][bucket, h].item()

        return self.attention(name, q, k, v, added, turned=config.positions == "rotary")

    def cross_attention(self, block, x, memory):
        name = f"{block}.cross_attention"
        q, k, v = (self.linear(f"{name}.{w}", y) for w, y in (("query", x), ("key", memory), ("value", memory)))
        return self.attention(name, q, k, v, lambda h, t, s, query: 0.0, turned=False)

    def attention(self, name, q, k, v, added, turned):
        config = self.config
        width, group = config.head_features, config.heads // config.key_value_heads
        scale = 1 / math.sqrt(width) if config.scaled_attention else 1.0
        outputs = []
        for h in range(config.heads):
            own, shared = slice(h * width, (h + 1) * width), slice(h // group * width, (h // group + 1) * width)
            queries, keys = q[:, own], k[:, shared]
            if config.qk_norm:
                queries, keys = self.rms(f"{name}.query_norm", queries), self.rms(f"{name}.key_norm", keys)
            if turned:
                queries, keys = (rotated(y, config) for y in (queries, keys))
            places = [[added(h, t, s, queries[t]) for s in range(len(k))] for t in range(len(q))]
            if f"{name}.score" in self.weights:  # Bahdanau et al. 2015
                vector = self.weights[f"{name}.score"][own]
                scores = torch.stack([torch.tanh(query + keys) @ vector for query in queries])
            else:
                scores = queries @ keys.T * scale
            scores = scores + torch.tensor(places, dtype=torch.float64)
            exponentials = torch.exp(scores - scores.max(dim=1, keepdim=True).values)
            outputs.append(exponentials / exponentials.sum(dim=1, keepdim=True) @ v[:, shared])
        return self.linear(f"{name}.output", torch.cat(outputs, dim=1))

    def mlp(self, name, x):
        function = ACTIVATIONS[self.config.activation]
        if self.config.activation in ("swiglu", "geglu", "geglu_tanh"):
            inner = function(self.linear(f"{name}.gate", x)) * self.linear(f"{name}.up", x)
        else:
            inner = function(self.linear(f"{name}.up", x))
        return self.linear(f"{name}.down", inner)

    def linear(self, name, x):
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def norm(self, name, x):
        if self.config.norm == "rmsnorm":
            return self.rms(name, x)
        centred = x - x.mean(dim=1, keepdim=True)
        variance = centred.square().mean(dim=1, keepdim=True)
        scaled = centred / torch.sqrt(variance + self.config.norm_eps)
        return scaled * self.weights[f"{name}.weight"] + self.weights.get(f"{name}.bias", 0.0)

    def rms(self, name, x):
        root = torch.sqrt(x.square().mean(dim=1, keepdim=True) + self.config.norm_eps)
        return x / root * self.weights[f"{name}.weight"]

    def head(self, hidden):
        config = self.config
        if config.architecture == "encoder":
            hidden = self.norm("head.norm", gelu(self.linear("head.dense", hidden)))
        if config.scaled_head:
            hidden = hidden / math.sqrt(config.width)
        matrix = self.weights["embedding.weight" if config.tied_head else "head.weight"]
        values = hidden @ matrix.T + self.weights.get("head.bias", 0.0)
        return config.soft_cap * torch.tanh(values / config.soft_cap) if config.soft_cap else values


def gelu(x):
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x):
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


ACTIVATIONS = {
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "relu": lambda x: x * (x > 0),
    "relu2": lambda x: x * x * (x > 0),
    "swiglu": lambda x: x / (1 + torch.exp(-x)),
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
}


def sinusoids(length, width):
    rows = []
    for t in range(length):
        angles = [t / 10000 ** (2 * i / width) for i in range(width // 2)]
        rows.append([f(angle) for angle in angles for f in (math.sin, math.cos)])
    return torch.tensor(rows, dtype=torch.float64)


def rotated(x, config):
    """Return x with the complex number of components i, i + R / 2 in row t rotated by t / (base^(2i / R) * factor).

    R is the number of rotated components, the first of each head.
    """
    width = config.rotary_width or x.shape[1]
    half = width // 2
    numbers = torch.complex(x[:, :half], x[:, half:width])
    factor = config.rotary_factor if config.rotary_scaling == "linear" else 1.0
    for t in range(len(x)):
        for i in range(half):
            angle = t / (config.rotary_base ** (i / half) * factor)
            numbers[t, i] *= complex(math.cos(angle), math.sin(angle))
    return torch.cat((numbers.real, numbers.imag, x[:, width:]), dim=1)


def alibi_slope(head, heads):
    """Press et al. 2022: a geometric sequence from 2^(-8 / n) by that ratio; between powers of two, interpolated."""
    n = 1
    while 2 * n <= heads:
        n *= 2
    if head < n:
        return (2 ** (-8 / n)) ** (head + 1)
    return (2 ** (-8 / (2 * n))) ** (2 * (head - n) + 1)


def t5_bucket(offset, buckets, farthest, causal):
    """Raffel et al. 2020, as in the released code: small distances have a bucket each, larger ones share."""
    first, distance = 0, -offset
    if not causal:
        buckets //= 2
        first, distance = buckets if offset > 0 else 0, abs(offset)
    exact = buckets // 2
    if distance < exact:
        return first + max(distance, 0)
    # float32, as in the released code: at a power of the base the last digit decides
    ratio = torch.tensor(distance, dtype=torch.float32).div(exact).log() / math.log(farthest / exact)
    return first + min(buckets - 1, exact + int((ratio * (buckets - exact)).item()))
