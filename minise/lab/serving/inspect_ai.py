"""Self-Ensemble as a solver for the multiple-choice tasks of inspect_ai.

    inspect eval TASK --model MODEL --solver minise/self_ensemble -S m=4 -S trials=20

It stands in for `multiple_choice()`. The task keeps its data set and its scorer `choice()`.
"""

from inspect_ai.model import ChatMessage, GenerateConfig, ModelOutput, get_model
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import LimitExceededError, collect
from torch import float64, tensor

from minise.errors import InputError, quote
from minise.lab.serving.texts import TextModel, labels_of, texts_of
from minise.method import SelfEnsemble
from minise.prompts import LabelLogits
from minise.question import Question

MORE = 5  # times as many tokens, where a label is missing
NEVER = -9999.0  # OpenAI's number for a log-probability that it did not compute
SPACES = str.maketrans("\u0120\u2581", "  ")  # some providers spell tokens as the vocabulary does


@solver  # type: ignore[untyped-decorator]
def self_ensemble(
    m: int = 4, trials: int = 20, seed: int = 0, null_option: bool = True, top_logprobs: int = 20
) -> Solver:
    """Ask groups of m choices, split `trials` times, and mark the choice with the largest score.

    Each epoch draws other groups. The sample's store keeps the choices' probabilities as
    "self_ensemble". `top_logprobs`: how many log-probabilities to ask for at first. A sample ends
    at a label that is not among all that the provider gives: the sample's limit in the log names
    it. Raises InputError as `minise.self_ensemble` does, and where a provider gives none."""
    method = SelfEnsemble(m, trials, null_option=null_option)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        user = state.user_prompt
        question = Question(user.text, [choice.value for choice in state.choices])
        lm = TextModel()
        plan, prompts = method.prompts(lm, question, seed + state.epoch - 1)

        async def ask_group(text: str, labels: str) -> LabelLogits:
            prompt = user.model_copy(deep=True)
            prompt.text = text
            messages = [prompt if message is user else message for message in state.messages]
            return await ask_labels(messages, labels, top_logprobs)

        logits = await collect(*map(ask_group, texts_of(lm, prompts), labels_of(prompts)))
        answer = method.answer(plan, logits)
        for i in range(len(question.choices)):
            state.choices.mark_choice(i, i == answer.prediction)
        state.store.set("self_ensemble", answer.normalized.tolist())
        chosen = question.choices[answer.prediction]
        state.output = ModelOutput.from_content(str(state.model), chosen)
        state.messages.append(state.output.message)
        return state

    return solve


class MissingLabel(InputError):
    """given: among how many tokens it is not."""

    def __init__(self, message: str, given: int) -> None:
        super().__init__(message)
        self.given = given


async def ask_labels(messages: list[ChatMessage], labels: str, most: int) -> LabelLogits:
    """Ask for the `most` probable tokens, and where a label is missing for more of them, until the
    provider gives no more."""
    missing = None
    while True:
        config = GenerateConfig(max_tokens=1, logprobs=True, top_logprobs=most)
        try:
            output = await get_model().generate(messages, config=config)
        except Exception as error:  # each provider has its own for a number that is too large
            if missing is None or isinstance(error, LimitExceededError):
                raise
            raise ends(missing) from error
        try:
            return read_labels(output, labels)
        except MissingLabel as error:
            if error.given < most:
                raise ends(error) from None
            missing = error
        most *= MORE


def ends(missing: MissingLabel) -> LimitExceededError:
    """What ends a sample, and not the run."""
    return LimitExceededError(
        "custom", value=missing.given + 1, limit=missing.given, message=str(missing)
    )


def read_labels(output: ModelOutput, labels: str) -> LabelLogits:
    """The log-probabilities of the labels as an answer's first token.

    A model that goes on with a text says " A", one that answers a message "A". The spelling of
    the most probable label counts. Raises MissingLabel if a label is missing in it.
    """
    logprobs = output.choices[0].logprobs
    if not (logprobs and logprobs.content and logprobs.content[0].top_logprobs):
        raise InputError(f"{output.model} gives no log-probabilities; use a provider that does")
    likely = logprobs.content[0].top_logprobs
    given: dict[str, float] = {}
    for top in likely:
        if top.logprob > NEVER:  # NaN is not
            # The most probable come first. Of two tokens with the same text, the first counts.
            given.setdefault(top.token.translate(SPACES), top.logprob)
    with_space = [f" {label}" for label in labels]
    without = list(labels)
    likeliest_with = max(given.get(name, NEVER) for name in with_space)
    likeliest_without = max(given.get(name, NEVER) for name in without)
    spelled = with_space if likeliest_with >= likeliest_without else without
    missing = [name for name in spelled if name not in given]
    if missing:
        among = f"not among the {len(likely)} most probable tokens, all that it gives"
        raise MissingLabel(f"{output.model}: {quote(missing)} {among}", len(likely))
    values = [given[name] for name in spelled]
    return LabelLogits(tensor(values, dtype=float64), total=tensor(0.0, dtype=float64))
