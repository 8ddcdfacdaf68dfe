"""What is asked of a run, and how run.json describes it."""

import hashlib
import inspect
import json
import re
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from minise import __version__
from minise.lab.data.asked import Asked
from minise.lab.equal_bits.decoder import EqualBits
from minise.lab.evaluation.experiments import Variant
from minise.lab.evaluation.facts import MethodFacts, RunFacts, TaskFacts, at, facts_of
from minise.lab.evaluation.folder import WHOLE, Shard
from minise.lab.evaluation.rows import Keep, key_of_question
from minise.lab.files import json_of
from minise.lab.methods.fitted import Fitted, check_needs
from minise.lab.methods.registry import make_method, read_settings
from minise.lab.quantize import count_weights
from minise.lm import LocalModel
from minise.method import Method
from minise.prompts import LanguageModel


@dataclass(frozen=True)
class TaskRun:
    """What runs on one task. options: settings of all methods that have them. defaults: likewise,
    but for a class of the user's own that states one itself. methods: made from the variants.
    Raises InputError as `make_method` does, and for one that can never be fitted."""

    name: str
    dataset: str
    questions: Sequence[Asked]
    variants: Sequence[Variant]
    options: dict[str, Any]
    defaults: dict[str, Any] = field(default_factory=dict)
    methods: dict[str, Method | Fitted] = field(init=False)

    def __post_init__(self) -> None:
        methods = {}
        for variant in self.variants:
            _, method = make_method(variant.text, self.options, self.defaults)
            methods[variant.name] = method
        check_needs(methods)
        object.__setattr__(self, "methods", methods)  # a frozen class sets fields through object


@dataclass(frozen=True)
class Run:
    """The request of a run. about: the fields of RunFacts that its command was given. keep: in all
    rows; groups are also in rows that fitted methods need. peak: measure memory."""

    tasks: Sequence[TaskRun]
    about: dict[str, Any]
    shard: Shard = WHOLE
    keep: Keep = field(default_factory=Keep)
    peak: bool = False


def describe(lm: LanguageModel, run: Run) -> RunFacts:
    """What run.json says, as it is read again. Raises InputError for the name of a file that is no
    text: it could not be."""
    facts = RunFacts(
        **run.about,
        **describe_model(lm),
        versions={"minise": __version__, "torch": torch.__version__},
        shards=run.shard[1],
        keep={"groups": run.keep.groups, "text": run.keep.text},
        tasks={task.name: describe_task(lm, task, run.keep) for task in run.tasks},
    )
    with at("the names in run.json"):
        return facts_of(json_of(json.dumps(facts.as_json()).encode()))


def settings_of(method: Method | Fitted) -> dict[str, Any]:
    """As JSON, with what is no JSON as Python writes it."""
    text = json.dumps(vars(method), default=repr)
    settings: dict[str, Any] = json.loads(re.sub(" at 0x[0-9a-f]+", "", text))  # of functions
    return settings


def describe_model(lm: LanguageModel) -> dict[str, Any]:
    """The fields of RunFacts for a model, its tokenizer, and how it runs."""
    return {
        "model": lm.name,
        "model_code": own_code(lm.name),
        "tokenizer": hash_of([lm.tokenizer.backend.to_str()]),
        **describe_weights(lm),
    }


def describe_weights(lm: LanguageModel) -> dict[str, Any]:
    """Of a model that runs here its weights, and how they run. A model elsewhere says itself what
    is known of it, by a method `about`: fields of RunFacts."""
    if isinstance(lm, LocalModel):
        return {
            "revision": lm.revision,
            "weights": weights_hash(lm) if hasattr(lm.decoder, "state_dict") else None,
            "parameters": count_weights(lm.decoder) if hasattr(lm.decoder, "parameters") else None,
            "dtype": str(lm.decoder.dtype).removeprefix("torch."),
            "device": str(lm.decoder.device).partition(":")[0],
            "equal_bits": isinstance(lm.decoder, EqualBits),
        }
    about: Callable[[], dict[str, str]] = getattr(lm, "about", dict)
    return about()


def weights_hash(lm: LocalModel) -> str:
    """Of the config, and of a checksum of all bytes of each tensor of the weights. It stands
    against mistakes, and costs a second of the processor for 3 GB. The names have no part in it:
    equal bits have others."""
    checksums = []
    decoder: Any = lm.decoder  # of any kind
    for tensor in decoder.state_dict().values():
        content = tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        checksums.append([list(tensor.shape), zlib.crc32(content)])
    return hash_of([repr(lm.config), checksums])


def needed_by(methods: Mapping[str, Method | Fitted]) -> set[str]:
    """The methods whose answers others are fitted on."""
    needed: set[str] = set()
    for method in methods.values():
        needed.update(getattr(method, "needs", ()))
    return needed


def describe_task(lm: LanguageModel, task: TaskRun, keep: Keep) -> TaskFacts:
    """The questions by a hash, and the methods; of each, whether its lines have the groups."""
    sizes = {len(asked.question.choices) for asked in task.questions}
    keys = [key_of_question(asked) for asked in task.questions]
    methods = {}
    for variant, method in zip(task.variants, task.methods.values(), strict=True):
        has_groups = keep.groups or variant.name in needed_by(task.methods)
        methods[variant.name] = describe_method(lm, variant, method, task.options, has_groups)
    return TaskFacts(
        dataset=task.dataset,
        choices=sizes.pop() if len(sizes) == 1 else None,
        questions=len(task.questions),
        hash=hash_of(keys),
        options={**task.defaults, **task.options},
        methods=methods,
    )


def describe_method(
    lm: LanguageModel,
    variant: Variant,
    method: Method | Fitted,
    options: dict[str, Any],
    has_groups: bool = False,
) -> MethodFacts:
    cls = type(method)
    _, own = read_settings(variant.text)
    template = None
    if "template" in vars(method):
        template = own.get("template", options.get("template", "default"))
    return MethodFacts(
        text=variant.text,
        engine=variant.engine or lm.engine,
        kind=cls.name,
        template=template,
        settings=settings_of(method),
        fitted=isinstance(method, Fitted),
        groups=has_groups,
        code=code_hash(inspect.getfile(cls)),  # it may be the user's own
        engine_code=None if variant.engine else own_code(lm.engine),
    )


def own_code(where: str) -> str | None:
    """The hash of the file of "FILE.py:NAME" or "package.module:NAME"; None for another name."""
    source, _, _ = where.rpartition(":")
    if source.endswith(".py"):
        return code_hash(source)
    return code_hash(str(sys.modules[source].__file__)) if source in sys.modules else None


def code_hash(path: str) -> str:
    return hash_of([Path(path).read_text("utf-8")])


def hash_of(values: Sequence[Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
