"""Train a retriever in a loop of your own, on as many devices as the launcher starts.

accelerate launch examples/accelerate_loop.py --base PATH_OR_HUB_ID --data BEIR_FOLDER --output RUN
torchrun --nproc_per_node 2 examples/accelerate_loop.py …        (on CPU)
"""

import argparse
from itertools import islice

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

import sourcier

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--base", required=True, help="a Hugging Face encoder: a folder or a hub id")
parser.add_argument("--data", required=True, help="a BEIR folder with qrels/train.tsv")
parser.add_argument("--output", required=True, help="the folder the model is saved to")
parser.add_argument("--steps", type=int, default=360)
parser.add_argument("--batch-size", type=int, default=16, help="of all devices together")
arguments = parser.parse_args()

accelerator = Accelerator(cpu=not torch.accelerator.is_available())
torch.manual_seed(0)
model = sourcier.ColBERT.from_base(arguments.base)
examples = sourcier.Examples.from_beir(arguments.data)
loader = DataLoader(
    examples,
    batch_size=arguments.batch_size // accelerator.num_processes,
    sampler=torch.randperm(len(examples)).tolist(),
    collate_fn=sourcier.Collator(model),
)
step = sourcier.TrainingStep.Config().build(model)
optimizer = torch.optim.AdamW(step.parameters(), lr=5e-5)
step, optimizer, loader = accelerator.prepare(step, optimizer, loader)

for number, batch in enumerate(islice(loader, arguments.steps)):
    output = step(batch, number)
    accelerator.backward(output.loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(f"step {number + 1}: loss {output.metrics['loss'].item():.4f}")

if accelerator.is_main_process:
    model.save_pretrained(arguments.output)
accelerator.end_training()
