"""A model of transformers with the head of a task, and ours with the same weights."""

import torch
from transformers import BertConfig

from lm.exchange import from_hugging_face
from lm.task_model import TaskModel

BERT = BertConfig(
    vocab_size=50,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=12,
    num_labels=5,
)


def twin(theirs, head, prefix, **parts):
    """Return a model of transformers and ours, in evaluation mode, with the same random weights.

    `prefix`: of the names of its body. `parts` of our head get the weights of its modules.
    """
    torch.manual_seed(1)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    tensors = {name.removeprefix(prefix): value for name, value in theirs.state_dict().items()}
    heads = ("score.", "classifier.", "qa_outputs.", "classification_head.", "bert.pooler.")
    imported = from_hugging_face(
        theirs.config.to_dict(), {name: value for name, value in tensors.items() if not name.startswith(heads)}
    )
    ours = TaskModel(imported.config, head)
    ours.load_body(imported.weights)
    for name, module in parts.items():
        getattr(ours.head, name).load_state_dict(module.state_dict())
    return theirs.eval(), ours.eval()
