"""The public names and where they live, for type checkers and for __init__.py, which reads it."""

from minise.checking.packing_formats import check as check
from minise.checking.recording import record as record
from minise.checking.training import packed_loss as packed_loss
from minise.config import Config as Config
from minise.engines import LanguageModel as LanguageModel
from minise.engines import branch_logits as branch_logits
from minise.errors import InputError as InputError
from minise.explaining.page import Page as Page
from minise.explaining.page import explain as explain
from minise.grouping import Groups as Groups
from minise.layout import Layout as Layout
from minise.layout import Tree as Tree
from minise.layout import pack as pack
from minise.loading.checkpoint import load as load
from minise.method import PAPER as PAPER
from minise.method import Answer as Answer
from minise.method import Group as Group
from minise.method import Method as Method
from minise.method import Plan as Plan
from minise.method import Preset as Preset
from minise.method import SelfEnsemble as SelfEnsemble
from minise.method import Standard as Standard
from minise.methods.authors_code import AUTHORS_CODE as AUTHORS_CODE
from minise.methods.public import self_ensemble as self_ensemble
from minise.methods.public import standard as standard
from minise.model import Decoder as Decoder
from minise.prompt import Template as Template
from minise.question import Question as Question
from minise.rounds import ask as ask
from minise.writing.generation import Generation as Generation
from minise.writing.generation import generate as generate

__version__: str
