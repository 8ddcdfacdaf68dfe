# What a type checker sees of `import minise`: the names of PUBLIC in by_name.py. A fork without the
# lab takes its lines out.
from minise.config import Config as Config
from minise.config import RopeScaling as RopeScaling
from minise.errors import InputError as InputError
from minise.grouping import Groups as Groups
from minise.grouping import random_partitions as random_partitions
from minise.lab.methods.fitted import Fitted as Fitted
from minise.lab.methods.fitted import remade as remade
from minise.lab.packing.guard import guard as guard
from minise.lab.packing.judging import check as check
from minise.lab.page.explain import Page as Page
from minise.lab.page.explain import explain as explain
from minise.lab.writing.generation import Generation as Generation
from minise.lab.writing.generation import generate as generate
from minise.layout import Layout as Layout
from minise.layout import pack as pack
from minise.lm import LocalModel as LocalModel
from minise.lm import branch_logits as branch_logits
from minise.loading.checkpoint import load as load
from minise.loading.config_json import read_config as read_config
from minise.method import Answer as Answer
from minise.method import Group as Group
from minise.method import Method as Method
from minise.method import SelfEnsemble as SelfEnsemble
from minise.method import Standard as Standard
from minise.method import ask as ask
from minise.method import combine as combine
from minise.model import MLP as MLP
from minise.model import Block as Block
from minise.model import Decoder as Decoder
from minise.model import RMSNorm as RMSNorm
from minise.prompts import LabelLogits as LabelLogits
from minise.prompts import LanguageModel as LanguageModel
from minise.prompts import Prompts as Prompts
from minise.public import self_ensemble as self_ensemble
from minise.public import standard as standard
from minise.question import Question as Question
from minise.rope import cos_sin as cos_sin
from minise.template import Template as Template
from minise.template import write_prompts as write_prompts
from minise.tokenizer import Tokenizer as Tokenizer
from minise.verify.recording import record as record
from minise.verify.training import packed_loss as packed_loss

__version__: str
__all__: list[str]
_HOMES: dict[str, str]
