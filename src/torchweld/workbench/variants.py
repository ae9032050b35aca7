"""The ways in which an architecture is called: one forward, with more arguments, token by token."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as tr

from torchweld.workbench.architectures import ARCHITECTURES, TOKENS, VOCAB, Architecture

Compile = Callable[[Any], Any]
NEW_TOKENS = 16
MORE_TOKENS = 48  # what `generate` compiles must not grow with the tokens that it makes
CACHE = 32  # tokens that a cache of fixed size has room for
_SEED = 7


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to call a model, the same on every side.

    grad: whether gradients are recorded. generate: more arguments, if `generate` is called.
    """

    name: str
    model: Any
    kwargs: dict[str, Any]
    grad: bool = False
    generate: dict[str, Any] = field(default_factory=dict)

    def run(self, compile: Compile | None = None) -> Any:
        """The result and the arguments afterwards; `compile` is applied to what calls the model."""
        kwargs = copy.deepcopy(self.kwargs)
        torch.manual_seed(_SEED)
        with torch.set_grad_enabled(self.grad):
            if self.generate:
                return self._generate(compile, kwargs)
            called = compile(self.model) if compile else self.model
            return called(**kwargs), kwargs

    def _generate(self, compile: Compile | None, kwargs: dict[str, Any]) -> Any:
        """As transformers documents it: the model's `forward` is replaced by the compiled one."""
        if compile:
            self.model.forward = compile(self.model.forward)
        try:
            return self.model.generate(**kwargs, **self.generate)
        finally:
            if compile:
                del self.model.forward


def variants(name: str) -> Iterator[Variant]:
    """All variants that an architecture has, each built when it is asked for."""
    for how in VARIANTS:
        made = variant(name, how)
        if made is not None:
            yield made


def variant(name: str, how: str) -> Variant | None:
    """One variant of an architecture; None if its class has no such call. The same every time."""
    torch.manual_seed(_SEED)
    return _MAKERS[how](ARCHITECTURES[name], how)


def _plain(row: Architecture) -> tuple[Any, dict[str, Any]]:
    model = row.build()
    inputs: dict[str, Any] = dict(row.inputs(model.config))
    if row.decodes:
        inputs["use_cache"] = False
    return model, inputs


def _forward(row: Architecture, name: str) -> Variant:
    model, inputs = _plain(row)
    return Variant(name, model, inputs)


def _mask(row: Architecture, name: str) -> Variant | None:
    """The first tokens of the second row are padding."""
    model, inputs = _plain(row)
    if "input_ids" not in inputs:
        return None
    mask = torch.ones_like(inputs["input_ids"])
    mask[1, :3] = 0
    return Variant(name, model, {**inputs, "attention_mask": mask})


def _labels(row: Architecture, name: str) -> Variant | None:
    """The loss, with gradients recorded."""
    if row.labels is None:
        return None
    model, inputs = _plain(row)
    return Variant(name, model, {**inputs, "labels": row.labels(model.config)}, grad=True)


def _growing(row: Architecture, name: str) -> Variant | None:
    """One token behind a cache that the prompt has filled."""
    if not row.decodes:
        return None
    model, inputs = _plain(row)
    with torch.no_grad():
        out = model(**{**inputs, "use_cache": True})
    kept = _cache_name(model)
    if kept is None or getattr(out, kept, None) is None:
        return None  # the state is in the model
    return Variant(name, model, _step(inputs, out, kept))


def _static(row: Architecture, name: str) -> Variant | None:
    """One token behind the prompt, in a cache of fixed size."""
    if not row.decodes or row.family == "state space":  # these have no keys to keep
        return None
    model, inputs = _plain(row)
    cache: Any = tr.StaticCache(config=model.config, max_cache_len=CACHE)
    if row.family in ("encoder-decoder", "audio"):
        longer: Any = tr.StaticCache(config=model.config, max_cache_len=CACHE)
        cache = tr.EncoderDecoderCache(cache, longer)
    kept = _cache_name(model)
    assert kept is not None
    masks = [{"attention_mask": _filled(n)} if row.whole_mask else {} for n in (TOKENS, TOKENS + 1)]
    with torch.no_grad():
        out = model(**{**inputs, **masks[0], "use_cache": True, kept: cache})
    return Variant(name, model, {**_step(inputs, out, kept), **masks[1]})


def _cache_name(model: Any) -> str | None:
    """What the model calls its cache: it takes any other name too, and looks at none."""
    taken = inspect.signature(model.forward).parameters
    return next((n for n in ("cache", "past_key_values", "cache_params") if n in taken), None)


def _filled(tokens: int) -> torch.Tensor:
    """The mask of a cache of fixed size that holds so many tokens."""
    return (torch.arange(CACHE) < tokens).long().repeat(2, 1)


def _step(inputs: dict[str, Any], out: Any, kept: str) -> dict[str, Any]:
    """The arguments of the call that takes one more token."""
    token = torch.randint(4, VOCAB, (2, 1))
    step: dict[str, Any] = {kept: getattr(out, kept), "use_cache": True}
    if "decoder_input_ids" in inputs:
        encoded = (out.encoder_last_hidden_state,)
        return {**step, "decoder_input_ids": token, "encoder_outputs": encoded}
    return {**step, "input_ids": token}


def _generated(row: Architecture, name: str, **more: Any) -> Variant | None:
    if not row.decodes:
        return None
    model, inputs = _plain(row)
    inputs = {k: v for k, v in inputs.items() if k not in ("use_cache", "decoder_input_ids")}
    if "input_ids" in inputs:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    # whatever the weights say, NEW_TOKENS tokens are made
    settings = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    return Variant(name, model, inputs, generate={**settings, **more})


def _generated_static(row: Architecture, name: str) -> Variant | None:
    if row.family == "state space":
        return None
    return _generated(row, name, cache_implementation="static")


_MAKERS: dict[str, Callable[[Architecture, str], Variant | None]] = {
    "forward": _forward,
    "mask": _mask,
    "labels": _labels,
    "growing cache": _growing,
    "static cache": _static,
    "generate": _generated,
    "generate, static cache": _generated_static,
}
VARIANTS = tuple(_MAKERS)
