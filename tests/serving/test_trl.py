"""TRL's GRPOTrainer trains a tiny policy on scores that it asks a server for."""

import httpx
import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..reward_models.tiny_models import make_model
from .test_native_route import TOLERANCE
from .test_serve_command import begin


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # TRL and transformers warn of each other
def test_ten_steps_of_grpo(names, plain, tmp_path):
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    asked = []

    def reward(prompts, completions, **columns):
        scores = []
        for prompt in dict.fromkeys(prompts):
            group = [text for one, text in zip(prompts, completions, strict=True) if one == prompt]
            sent = {"prompt": prompt, "responses": group}
            answer = httpx.post(f"{address}/v1/scores", json=sent).raise_for_status().json()
            asked.append((sent, answer["scores"]))
            scores += answer["scores"]
        return scores

    folder = make_model(tmp_path / "policy")
    arguments = GRPOConfig(
        output_dir=str(tmp_path / "out"),
        max_steps=10,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=8,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        logging_steps=1,
    )
    rows = Dataset.from_list([{"prompt": f"w{number} w2?"} for number in range(8)])
    server = begin("--model", names["scalar"])
    try:
        address = server.stdout.readline().split(" at ")[1].split()[0]
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder),
            reward_funcs=reward,
            args=arguments,
            train_dataset=rows,
            processing_class=AutoTokenizer.from_pretrained(folder),
        )
        trainer.train()
    finally:
        server.kill()
        server.communicate()
    assert trainer.state.global_step == 10
    assert len(asked) >= 10
    for sent, scores in asked:
        assert scores == pytest.approx(plain.score(**sent), abs=TOLERANCE)
    means = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    assert means == pytest.approx([sum(scores) / len(scores) for _, scores in asked], abs=1e-4)
