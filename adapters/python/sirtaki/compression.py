"""Choices of compression for gradients, for all frameworks; adapters add the casts of their tensors.

A choice is one of
- Compression.none: follows the option compression.codec;
- Compression.fp16, Compression.bf16, or a method: Compression.int8, Compression.group_topk(rate=0.01, momentum=0.9);
- the same as text: "hylo", "group_topk:rate=0.01,momentum=0.9"; "none" turns compression off;
- a dict of such choices by pattern of parameter names, of which the first match counts: {"fc*": "twobit"};
- a class or object of the program with compress() and decompress(), as in Horovod.

docs/compression.md lists the methods and their settings.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from decimal import Decimal
from numbers import Real
from typing import Any

from sirtaki import _core, basics, errors
from sirtaki.errors import require


class Compressor:
    """Base class, as in Horovod. In DistributedOptimizer the runtime casts on the wire; see `codec`."""

    #: Name of the codec of the runtime; None follows the option compression.codec.
    codec: str | None = None

    @classmethod
    def compress(cls, tensor: Any) -> tuple[Any, Any]:
        """Returns the tensor to send for `tensor`, and the context that decompress() needs."""
        return tensor, None

    @classmethod
    def decompress(cls, tensor: Any, ctx: Any) -> Any:
        """Returns the received `tensor` in its original dtype; `ctx` is the context that compress() gave."""
        del ctx
        return tensor


class NoneCompressor(Compressor):
    """Sends tensors unchanged. In DistributedOptimizer: follows the option compression.codec."""

    runtime = True


class Method:
    """A compression method of the runtime; a call with settings returns its text."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, **settings: Any) -> str:
        """Returns the method with settings as text. Raises ValueError for values that no setting can have."""
        return self._name + "".join(
            f"{':' if i == 0 else ','}{key}={_setting(self._name, key, value)}"
            for i, (key, value) in enumerate(settings.items())
        )

    def __str__(self) -> str:
        return self._name

    def __repr__(self) -> str:
        return f"Compression.{self._name}"


def _setting(method: str, key: str, value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Real):
        # Digits only, as the runtime reads them: 0.00001, not 1e-05.
        return format(Decimal(repr(value)), "f")
    well_formed = isinstance(value, str) and re.fullmatch(r"[^,;:=>\s]+", value) is not None
    require(well_formed, f"{method}: {key} is {value!r}, must be a number, True, False or a word")
    return str(value)


class _MethodNames(type):
    """Makes every codec and policy of the runtime an attribute: Compression.onebit is Method("onebit")."""

    def __getattr__(cls, name: str) -> Method:
        if not name.startswith("_"):
            try:
                _core.check_codec(name)
            except errors.InvalidArgumentError as error:
                raise AttributeError(f"Compression.{name}: {error}") from None
            return Method(name)
        raise AttributeError(name)


class Methods(metaclass=_MethodNames):
    """Choices that need no tensor; see the text of the module. Frameworks add fp16 and bf16.

    Names of methods are those of runtime/base/codecs.inc and of the policies.
    """

    none = NoneCompressor


#: Accepted choices; the last is a class or object of the program.
Choice = str | Method | type[Compressor] | Mapping[str, Any] | Any


def choice_of(compression: Any) -> tuple[str | None, Any]:
    """Returns (codec, policy or rules of the runtime as text; compressor of the program); at most one is not None.

    Raises:
        InvalidArgumentError: `compression` is no valid choice.
    """
    user_compressor = _user_compressor(compression)
    return (None, user_compressor) if user_compressor is not None else (_text(compression), None)


def option_text() -> str:
    """Returns the choice in the options, as the runtime reads it."""
    rules, codec = basics.option("compression.rules"), basics.option("compression.codec")
    if not rules:
        return codec
    return f"{rules};{codec}" if "=>" in codec else f"{rules};*=>{codec}"


#: Optimizer whose costs are known, by its name in lower case -> its kind, see for_optimizer(), and how many numbers it
#: keeps for each parameter, which local updates average. Adafactor keeps two vectors for a matrix.
OPTIMIZERS = {
    "sgd": ("sgd", 0),
    "adam": ("adam", 2),
    "adamw": ("adam", 2),
    "nadam": ("adam", 2),
    "radam": ("adam", 2),
    "adamax": ("adam", 2),
    "rmsprop": ("adam", 1),
    "adafactor": ("adam", 0),
    "muon": ("other", 1),
    "other": ("other", 2),
}


def kind_of(optimizer: Any, framework: Any) -> str:
    """Returns the kind of an optimizer of a framework, given by its module of optimizers; see for_optimizer()."""
    return next((kind for kind, classes in _classes_of(framework).items() if isinstance(optimizer, classes)), "other")


@functools.cache
def _classes_of(framework: Any) -> dict[str, tuple[type, ...]]:
    """Returns the optimizers whose costs are known, by their kind."""
    known = [(OPTIMIZERS.get(name.lower(), ("",))[0], one) for name, one in vars(framework).items()]
    return {kind: tuple(one for of, one in known if of == kind and isinstance(one, type)) for kind in ("sgd", "adam")}


def for_optimizer(text: str, kind: str) -> str:
    """Returns `text` with the kind of optimizer for every "auto" that names none.

    The same compression, and the same local steps, cost trainings different losses, by their optimizer.

    Args:
        text: a choice of compression, rules, or an interval of local updates.
        kind: "sgd"; "adam", an optimizer that divides by the magnitude of gradients; "other".
    """
    return text if kind == "sgd" else ";".join(_with_optimizer(rule, kind) for rule in text.split(";"))


def _with_optimizer(rule: str, kind: str) -> str:
    name, settings = parts_of(rule)
    if name != "auto" or "optimizer" in settings:
        return rule
    return f"{rule}{',' if any(settings) else ':'}optimizer={kind}"


def parts_of(rule: str) -> tuple[str, dict[str, str]]:
    """Returns name and settings of a choice without ";", with or without a pattern before it; checks nothing."""
    name, _, settings = rule.rpartition("=>")[2].partition(":")
    items = (item.partition("=") for item in settings.split(","))
    return name.strip(), {key.strip(): value.strip() for key, _, value in items}


def refuse_momentum(text: str) -> None:
    """Raises UnsupportedError for a choice that corrects momentum, which optimizers of Keras apply themselves."""
    for rule in text.split(";"):
        if parts_of(rule)[1].get("momentum", "0").strip("0.%") != "":
            raise errors.UnsupportedError(
                f'compression "{text}" corrects the momentum of SGD, which optimizers of Keras do not let it do; leave '
                "momentum out of the compression"
            )


def _text(compression: Any) -> str | None:
    if isinstance(compression, str):
        require(bool(compression.strip()), 'compression is empty; "none" sends gradients as they are')
        _core.check_codec(compression)
        return compression
    if isinstance(compression, Method):
        return str(compression)
    if isinstance(compression, type) and issubclass(compression, Compressor):
        return compression.codec
    if isinstance(compression, Mapping):
        return _rules(compression)
    raise errors.InvalidArgumentError(
        f"compression is {compression!r}; it must be one of Compression, its text, a dict of them by pattern of names, "
        "or a class with compress() and decompress()"
    )


def _rules(choices: Mapping[Any, Any]) -> str:
    require(bool(choices), "compression is an empty dict; give it a pattern, or leave compression out")
    rules = []
    for pattern, choice in choices.items():
        well_formed = isinstance(pattern, str) and pattern != "" and ";" not in pattern and "=>" not in pattern
        require(well_formed, f"compression: {pattern!r} is no pattern of names, like 'conv*' or '*.weight'")
        require(
            not isinstance(choice, Mapping) and _user_compressor(choice) is None,
            f"compression: {choice!r}, chosen for '{pattern}', must be a method of the runtime or its text",
        )
        text = "none" if choice is NoneCompressor or choice is None else _text(choice)
        require(
            "=>" not in str(text) and ";" not in str(text),
            f"compression: '{text}', chosen for '{pattern}', is a list of rules; a dict is one already",
        )
        rules.append(f"{pattern}=>{text}")
    _core.check_codec(";".join(rules))
    return ";".join(rules)


def _user_compressor(compression: Any) -> Any:
    """Returns `compression` if it is a compressor of the program, else None."""
    is_builtin = isinstance(compression, type) and "runtime" in vars(compression)
    if isinstance(compression, str | Mapping | Method) or is_builtin:
        return None
    callable_ = all(callable(getattr(compression, name, None)) for name in ("compress", "decompress"))
    return compression if callable_ else None
