"""The questions on which two methods disagree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from minise.errors import InputError, printable, quote, shorten
from minise.evaluation.predictions import choice_text, verdict, with_text
from minise.evaluation.samples import read_samples, samples_path
from minise.methods.sample import Sample
from minise.report.markdown import as_markdown
from minise.report.results import Results

SHOWN = 20  # questions on a terminal


@dataclass(frozen=True)
class Disagreement:
    """The questions of a task that two methods, `names`, answer differently, of `shared` ones."""

    task: str
    names: tuple[str, str]
    shared: int
    pairs: list[tuple[Sample, Sample]]

    def title(self) -> str:
        """Who disagrees on how many questions, and who is right there."""
        a, b = self.names
        text = f"{self.task}: {a} and {b} disagree on {len(self.pairs):,} of {self.shared:,}"
        if all(one.answer is None for one, _ in self.pairs):
            return f"{text} questions"
        right = [
            sum(s.prediction == s.answer for s in side) for side in zip(*self.pairs, strict=True)
        ]
        return f"{text} questions; right there: {a} {right[0]:,}, {b} {right[1]:,}"

    def rows(self) -> list[dict[str, str]]:
        """Each question with what the two predict, as text."""
        rows = []
        for pair in self.pairs:
            first = with_text(*pair)
            row = {
                "id": first.id if first.seed == 0 else f"{first.id}, seed {first.seed}",
                "question": first.text["question"] if first.text else "",
                "answer": choice_text(first, first.answer) or "not known",
            }
            for name, sample in zip(self.names, pair, strict=True):
                p = sample.probabilities[sample.prediction]
                row[name] = f"{shorten(choice_text(first, sample.prediction), 60)} ({p:.1%})"
                if sample.answer is not None:
                    row[name] += f", {verdict(sample)}"
            rows.append({name: " ".join(text.split()) for name, text in row.items()})
        return rows

    def as_text(self) -> str:
        """For a terminal: the first SHOWN of them."""
        width = max(map(len, ("answer", *self.names)))
        lines = [self.title()]
        for row in self.rows()[:SHOWN]:
            lines += ["", shorten(f"{row.pop('id')}  {row.pop('question')}".rstrip(), 100)]
            lines += [f"    {name:<{width}}  {shorten(text, 90)}" for name, text in row.items()]
        if len(self.pairs) > SHOWN:
            lines += ["", f"... and {len(self.pairs) - SHOWN:,} more"]
        return printable("\n".join(lines))

    def as_markdown(self) -> str:
        """All of them, as a table."""
        rows = [[shorten(text, 300) for text in row.values()] for row in self.rows()]
        head = ["id", "question", "answer", *self.names]
        lines = [_row(head), "| --- | --- | --- | --- | --- |", *map(_row, rows)]
        return printable("\n".join([as_markdown(self.title()), "", *(lines if rows else []), ""]))


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(map(as_markdown, texts))} |"


def disagreements(runs: Sequence[tuple[Path, Results]], a: str, b: str) -> list[Disagreement]:
    """Where two methods disagree, for each task: in each folder that has both, or else between the
    folders. Raises InputError where no task has both, and for a question that is not the same."""
    listed = []
    for task in dict.fromkeys(task for _, run in runs for task in run.raw["config"]["tasks"]):
        with_both = [[run] for run in runs if all(_samples([run], task, name) for name in (a, b))]
        for group in with_both or [list(runs)]:
            of_a, of_b = (_samples(group, task, name) for name in (a, b))
            shared = [(one, of_b[key]) for key, one in of_a.items() if key in of_b]
            for one, other in shared:
                if one.question_hash != other.question_hash:
                    problem = "is not the same for both; report runs of one task"
                    raise InputError(f"{task}: question {quote(one.id, 40)} {problem}")
            pairs = [(one, other) for one, other in shared if one.prediction != other.prediction]
            title = f"{group[0][1].model}, {task}" if len(with_both) > 1 else task
            if shared:
                listed.append(Disagreement(title, (a, b), len(shared), pairs))
    if not listed:
        by_task = [v for _, run in runs for v in run.raw["config"]["variants"].values()]
        names = ", ".join(dict.fromkeys(variant["name"] for v in by_task for variant in v))
        problem = f"no task has answers of both {quote(a)} and {quote(b)}"
        raise InputError(f"{problem}; the methods are {shorten(names, 150)}")
    return listed


def _samples(
    runs: Sequence[tuple[Path, Results]], task: str, name: str
) -> dict[tuple[int, str], Sample]:
    """The samples of a method, by seed and id, from the first folder that has some."""
    for folder, _ in runs:
        if samples := read_samples(samples_path(folder, task, name)):
            return {sample.key: sample for sample in samples}
    return {}
