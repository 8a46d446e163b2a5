from engined.offline.llm import LLM as LLM
from engined.offline.outputs import CompletionOutput as CompletionOutput
from engined.offline.outputs import EmbeddingOutput as EmbeddingOutput
from engined.offline.outputs import Logprob as Logprob
from engined.offline.outputs import RequestOutput as RequestOutput
from engined.offline.sampling_params import SamplingParams as SamplingParams

__version__: str
