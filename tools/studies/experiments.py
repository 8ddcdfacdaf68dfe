"""What our studies ran, as data: `python -m tools.studies eval --experiment NAME ...`."""

from minise.lab.evaluation.experiments import BY_K, Experiment, Variant, named


def splitting() -> tuple[Variant, ...]:
    """The arms of the first experiment on short lists (docs/real.md): many orders of the full list,
    without and with the null option, short lists, and each choice alone. Each by two templates."""
    arms = {
        "full-list": "full-list(template={})",
        "full-list-null": "full-list(null=true,template={})",
        "short-lists": "self-ensemble(group_size=4,template={})",
        "presence": "presence(template={})",
    }
    variants: list[Variant] = []
    for template in ("chat", "mmlu"):
        for name, text in arms.items():
            variants.append(Variant(f"{name}-{template}", text.format(template)))
    return tuple(variants)


OF_MANY_CHOICES = named(
    "standard m4:self-ensemble(group_size=4) m8:self-ensemble(group_size=8) "
    "m20:self-ensemble(group_size=20) cyclic geometric:cyclic(mean=geometric) cloze presence"
)
SHUFFLED = named(
    "standard-shuffled:full-list(orders=1) cyclic-shuffled:cyclic(shuffled=true) "
    "geometric-shuffled:cyclic(shuffled=true,mean=geometric) self-ensemble cloze"
)
VERDICT = named(
    "full-list-null:full-list(null=true,template=mmlu) "
    "short-lists:self-ensemble(group_size=4,template=mmlu)"
)
STUDIES = {
    "orders": Experiment(SHUFFLED, tables=("seeds",), seeds=(0, 1), question_seed=0),
    "many-choices": Experiment(OF_MANY_CHOICES, ("banking77",), figures=BY_K, cut_to=(20, 77)),
    "splitting": Experiment(
        splitting(),
        ("banking77",),
        cut_to=(20,),
        question_seed=0,
        skip={"banking77": 300, "qasc": 300},  # other runs have asked these
        keep_groups=True,
    ),
    "verdict": Experiment(
        VERDICT,
        question_seed=0,
        skip={"banking77": 350, "qasc": 312},  # other runs have asked these
        keep_groups=True,
    ),
    "confidence": Experiment(  # standard inference on the questions of `verdict`
        named("standard:standard(template=mmlu)"),
        question_seed=0,
        skip={"banking77": 350, "qasc": 312},
    ),
}
