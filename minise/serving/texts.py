"""The plan of a question for a model that takes texts and has no token ids for us."""

from minise.checks import check_labels, check_sizes
from minise.method import Plan, SelfEnsemble
from minise.prompt import LABELS, NULL_OPTION, Prompt
from minise.question import Question


def text_plan(method: SelfEnsemble, question: Question, seed: int = 0) -> tuple[Plan, list[str]]:
    """The plan of `minise.self_ensemble`, and the labels of each of its prompts as one text each
    ("ABCDE", the null option last). The prompts have texts, no ids. Raises InputError."""
    sizes = len(question.choices), method.group_size, method.trials
    check_sizes(*sizes)
    groups = method.grouping(*sizes, seed, question.id)
    null = [NULL_OPTION] if method.null_option else []
    lists = [[question.choices[i] for i in group] + null for group in groups.flat]
    check_labels(max(map(len, lists)), LABELS)
    texts = [method.template.render(question.text, choices) for choices in lists]
    plan = Plan(question, groups, [], [Prompt(text, [], None) for text in texts])
    return plan, [LABELS[: len(choices)] for choices in lists]
