"""Self-Ensemble as a task of lm-evaluation-harness. One line makes it of a multiple-choice task:

    class: !function minise.lab.serving.lm_eval.SelfEnsembleTask

in the task's YAML, where `doc_to_text` is the question alone, `doc_to_choice` the choices' texts,
`doc_to_target` the right one. `metadata` may set group_size, trials, seed and null_option.
qasc_self_ensemble.yaml beside this file is a complete task.
"""

from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask

from minise.errors import InputError, Unsuited, quote
from minise.lab.serving.texts import TextModel, labels_of, texts_of
from minise.method import GroupPlan, SelfEnsemble
from minise.prompts import LabelLogits, Prompts
from minise.question import Question

SETTINGS = ("group_size", "trials", "null_option")


class SelfEnsembleTask(ConfigurableTask):  # type: ignore[misc]
    """A multiple-choice task that asks the groups of each question, one log-likelihood request for
    each label. Its metrics (acc, brier_score, likelihood, ...) get the logarithms of the choices'
    probabilities in place of log-likelihoods. Raises InputError as `minise.self_ensemble` does.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        config = {**config, "output_type": "multiple_choice"}
        config.pop("class", None)  # this one
        super().__init__(config=config)

    def method(self) -> SelfEnsemble:
        given = self.config.metadata or {}
        return SelfEnsemble(**{name: given[name] for name in SETTINGS if name in given})

    def question(self, doc: dict[str, Any]) -> Question:
        return Question(self.doc_to_text(doc), self.doc_to_choice(doc))

    def prompts(self, lm: TextModel, doc: dict[str, Any]) -> tuple[GroupPlan, Prompts]:
        """The plan of a question and its prompts: the same in every call."""
        seed = (self.config.metadata or {}).get("seed", 0)
        return self.method().prompts(lm, self.question(doc), seed)

    def construct_requests(
        self, doc: dict[str, Any], ctx: str, apply_chat_template: bool = False, **kwargs: Any
    ) -> list[Instance]:
        """The requests of all groups. What stands around the question in `ctx` (a description, a
        chat template) stands around each prompt. Few shots would show answers without labels."""
        if self.config.num_fewshot:
            raise Unsuited("few shots show no labels; leave num_fewshot out")
        kwargs.pop("chat_template", None)  # `ctx` is written by it already
        text = self.question(doc).text
        before, found, after = ctx.rpartition(text)
        if not found:
            problem = f"the chat template changes the question {quote(text)}"
            raise InputError(f"{problem}; leave --apply_chat_template out")
        delimiter = "" if apply_chat_template else self.config.target_delimiter
        lm = TextModel()
        _, prompts = self.prompts(lm, doc)
        requests: list[Instance] = []
        for prompt, labels in zip(texts_of(lm, prompts), labels_of(prompts), strict=True):
            for label in labels:
                requests.append(
                    Instance(
                        request_type="loglikelihood",
                        doc=doc,
                        arguments=(before + prompt + after, delimiter + label),
                        idx=len(requests),
                        **kwargs,
                    )
                )
        return requests

    def process_results(
        self, doc: dict[str, Any], results: list[tuple[float, bool]]
    ) -> dict[str, Any]:
        """The metrics of one question, from the log-likelihoods of all labels of its prompts."""
        values = torch.tensor([value for value, _ in results], dtype=torch.float64)
        if not values.isfinite().all():
            raise InputError("the model gives log-likelihoods that are not finite; use float32")
        plan, prompts = self.prompts(TextModel(), doc)
        total = torch.zeros((), dtype=torch.float64)
        sizes = [len(ids) for ids in prompts.label_ids]
        logits = [LabelLogits(labels, total) for labels in values.split(sizes)]
        answer = self.method().answer(plan, logits)
        choices = []
        for i, log_p in enumerate(answer.normalized.log().tolist()):
            choices.append((log_p, i == answer.prediction))
        return super().process_results(doc, choices)
