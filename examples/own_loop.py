"""Train a retriever in a loop of your own, on one device.

python examples/own_loop.py --base PATH_OR_HUB_ID --data BEIR_FOLDER --output RUN
"""

import argparse
from itertools import islice

import torch
from torch.utils.data import DataLoader

import sourcier

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--base", required=True, help="a Hugging Face encoder: a folder or a hub id")
parser.add_argument("--data", required=True, help="a BEIR folder with qrels/train.tsv")
parser.add_argument("--output", required=True, help="the folder the model is saved to")
parser.add_argument("--steps", type=int, default=360)
parser.add_argument("--batch-size", type=int, default=16)
arguments = parser.parse_args()

torch.manual_seed(0)
model = sourcier.ColBERT.from_base(arguments.base)
examples = sourcier.Examples.from_beir(arguments.data)
loader = DataLoader(
    examples,
    batch_size=arguments.batch_size,
    sampler=torch.randperm(len(examples)).tolist(),
    collate_fn=sourcier.Collator(model),
)
step = sourcier.TrainingStep.Config().build(model)
optimizer = torch.optim.AdamW(step.parameters(), lr=5e-5)

for number, batch in enumerate(islice(loader, arguments.steps)):
    loss = step(batch, number).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {number + 1}: loss {loss.item():.4f}")

model.save_pretrained(arguments.output)
