"""Chat templates of models, dialogues for them, and what transformers makes of both."""

import json
import random
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

#: Templates that no package has, as the models' own pages write them.
DOCUMENTED = {
    "llama2": (
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{% set system_message = messages[0]['content'] %}{% else %}"
        "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}"
        "{% for message in loop_messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/...') }}"
        "{% endif %}{% if loop.index0 == 0 and system_message != false %}"
        "{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + "
        "message['content'] %}{% else %}{% set content = message['content'] %}{% endif %}"
        "{% if message['role'] == 'user' %}"
        "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}"
        "{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"
    ),
    "mistral": (
        "{{ bos_token }}{% for message in messages %}"
        "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Conversation roles must alternate user/assistant/user/...') }}"
        "{% endif %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] + ' [/INST]' }}"
        "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
        "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}"
        "{% endif %}{% endfor %}"
    ),
    "zephyr": (
        "{% for message in messages %}\n{% if message['role'] == 'user' %}\n"
        "{{ '<|user|>\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'system' %}\n"
        "{{ '<|system|>\n' + message['content'] + eos_token }}\n"
        "{% elif message['role'] == 'assistant' %}\n"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n{% endif %}\n"
        "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n"
        "{% endfor %}"
    ),
    "vicuna": (
        "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}"
        "{{ messages[0]['content'].strip() + ' ' }}{% else %}{% set loop_messages = messages %}"
        "{% endif %}{% for message in loop_messages %}{% if message['role'] == 'user' %}"
        "{{ 'USER: ' + message['content'].strip() + ' ' }}"
        "{% elif message['role'] == 'assistant' %}"
        "{{ 'ASSISTANT: ' + message['content'].strip() + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
    ),
    "alpaca": (
        "{% for message in messages %}{% if message['role'] == 'system' %}"
        "{{ message['content'] + '\n\n' }}{% elif message['role'] == 'user' %}"
        "{{ '### Instruction:\n' + message['content'] + '\n\n' }}{% else %}"
        "{{ '### Response:\n' + message['content'] + eos_token + '\n\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '### Response:\n' }}{% endif %}"
    ),
    "phi4": (
        "{% for message in messages %}{% if message['role'] == 'system' %}"
        "{{ '<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>' }}"
        "{% elif message['role'] == 'user' %}"
        "{{ '<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>' }}"
        "{% elif message['role'] == 'assistant' %}"
        "{{ '<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>' }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}"
        "{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
    ),
    "olmo2": (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}"
        "{{ '<|system|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'user' %}"
        "{{ '<|user|>\n' + message['content'] + '\n' }}"
        "{% elif message['role'] == 'assistant' %}{% if not loop.last %}"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token + '\n' }}{% else %}"
        "{{ '<|assistant|>\n'  + message['content'] + eos_token }}{% endif %}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
        "{% endfor %}"
    ),
}
#: Texts that are special tokens of the tokenizer.
SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<|eot_id|>"),
    *("<start_of_turn>", "<end_of_turn>", "<|start_header_id|>", "<|end_header_id|>", "<|end|>"),
    *("<|user|>", "<|assistant|>", "<|system|>", "<|begin_of_text|>", "<|im_sep|>", "<|eom_id|>"),
    *("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>", "<｜begin▁of▁sentence｜>"),  # noqa: RUF001
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|return|>", "<|start|>", "<|message|>"),
    *("<|call|>", "<|channel|>", "<|turn>", "<turn|>", "<|observation|>", "<|end_of_text|>"),
)
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a town, now",
            "parameters": {
                "type": "object",
                "properties": {"town": {"type": "string", "description": "its name"}},
                "required": ["town"],
            },
        },
    }
]
_WORDS = ("tell", "me", "why", "the", "sky", "née", "blue", "2+2=4", "<b>", "{x}", "日本", "ok.")
_BLANKS = ("", "", "", " ", "\n", "\n\n", "  \n", "\t")


@cache
def find_templates() -> dict[str, str]:
    """Return the text of each template by name; those of models are trl's."""
    spec = find_spec("trl")
    found = dict(DOCUMENTED)
    if spec is not None and spec.origin is not None:
        for file in sorted((Path(spec.origin).parent / "chat_templates").glob("*.jinja")):
            found[file.stem] = file.read_text(encoding="utf-8")
    return found


def make_dialogues(count: int, seed: int = 24) -> list[dict[str, Any]]:
    """Return records with system turns, tools, thoughts and odd blanks."""
    draw = random.Random(seed)

    def text(length: int = 6) -> str:
        words = draw.choices(_WORDS, k=draw.randint(1, length))
        return draw.choice(_BLANKS) + " ".join(words) + draw.choice(_BLANKS)

    def answer(**more: Any) -> dict[str, Any]:
        message = {"role": "assistant", "content": text(), **more}
        kind = draw.random()
        if kind < 0.2:
            message["reasoning_content"] = text()
        elif kind < 0.35 and "tool_calls" not in more:
            message["content"] = f"<think>\n{text()}\n</think>\n\n{text()}"
        elif kind < 0.4:
            message["content"] = ""
        return message

    records = []
    for _ in range(count):
        has_tools = draw.random() < 0.35
        messages = []
        if draw.random() < 0.5:
            messages.append({"role": "system", "content": text()})
        for _ in range(draw.randint(1, 4)):
            messages.append({"role": "user", "content": text()})
            if has_tools and draw.random() < 0.6:
                call = {"name": "get_weather", "arguments": {"town": text(2)}}
                call = {"id": "call00001", "type": "function", "function": call}
                messages.append(answer(tool_calls=[call]))
                if draw.random() < 0.3:
                    messages[-1]["content"] = None
                result = json.dumps({"weather": text(2)})
                known = {"tool_call_id": "call00001", "name": "get_weather"}
                messages.append({"role": "tool", "content": result, **known})
            messages.append(answer())
        records.append({"messages": messages} | ({"tools": _TOOLS} if has_tools else {}))
    return records


@cache
def train_tokenizer() -> Tokenizer:
    """Return byte pairs that merge line feeds and blanks, as those of the models do."""
    tokenizer = Tokenizer(models.BPE())
    pattern = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    texts = [str(m["content"]) for r in make_dialogues(50) for m in r["messages"]]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([*texts, *["\n\n", ".\n", ">\n\n", " \n"] * 20], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    return tokenizer
