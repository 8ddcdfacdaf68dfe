"""Self-Ensemble as a solver for the multiple-choice tasks of inspect_ai.

    inspect eval TASK --model MODEL --solver minise/self_ensemble -S m=4 -S trials=20

It stands in for `multiple_choice()`. The task keeps its data set and its scorer `choice()`.
"""

from inspect_ai.model import GenerateConfig, ModelOutput, get_model
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.util import collect
from torch import float64, tensor

from minise.errors import InputError, quote
from minise.lm import LabelLogits
from minise.method import SelfEnsemble
from minise.question import Question
from minise.serving.texts import TextModel, labels_of

NEVER = -9999.0  # OpenAI's number for a log-probability that it did not compute
SPACES = str.maketrans("\u0120\u2581", "  ")  # some providers spell tokens as the vocabulary does


@solver  # type: ignore[untyped-decorator]
def self_ensemble(
    m: int = 4, trials: int = 20, seed: int = 0, null_option: bool = True, top_logprobs: int = 20
) -> Solver:
    """Ask groups of m choices, split `trials` times, and mark the choice with the largest score.

    Each epoch draws other groups. The sample's store keeps the choices' probabilities as
    "self_ensemble". `top_logprobs`: how many log-probabilities to ask for. Raises InputError as
    `minise.self_ensemble` does, and for a label that is not among them."""
    method = SelfEnsemble(m, trials, null_option=null_option)
    config = GenerateConfig(max_tokens=1, logprobs=True, top_logprobs=top_logprobs)

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        user = state.user_prompt
        question = Question(user.text, [choice.value for choice in state.choices])
        plan, prompts = method.prompts(TextModel(), question, seed + state.epoch - 1)

        async def ask_group(text: str, labels: str) -> LabelLogits:
            prompt = user.model_copy(deep=True)
            prompt.text = text
            messages = [prompt if message is user else message for message in state.messages]
            return read_labels(await get_model().generate(messages, config=config), labels)

        logits = await collect(*map(ask_group, prompts.texts, labels_of(prompts)))
        answer = method.answer(plan, logits)
        for i in range(len(question.choices)):
            state.choices.mark_choice(i, i == answer.prediction)
        state.store.set("self_ensemble", answer.probabilities.tolist())
        chosen = question.choices[answer.prediction]
        state.output = ModelOutput.from_content(str(state.model), chosen)
        state.messages.append(state.output.message)
        return state

    return solve


def read_labels(output: ModelOutput, labels: str) -> LabelLogits:
    """The log-probabilities of the labels as an answer's first token.

    A model that goes on with a text says " A", one that answers a message "A". The spelling of
    the most probable label counts. Raises InputError if a label is missing in it.
    """
    logprobs = output.choices[0].logprobs
    if not (logprobs and logprobs.content and logprobs.content[0].top_logprobs):
        raise InputError(f"{output.model} gives no log-probabilities; use a provider that does")
    given: dict[str, float] = {}
    for top in logprobs.content[0].top_logprobs:
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
        about = f"{quote(missing)} not among the {len(given)} most probable tokens"
        raise InputError(f"{output.model}: {about}; ask for more (-S top_logprobs=N)")
    values = [given[name] for name in spelled]
    return LabelLogits(tensor(values, dtype=float64), total=tensor(0.0, dtype=float64))
