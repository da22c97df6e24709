# docs/credit-elsewhere.md: verl knows our estimators, and its own driver computes their advantages.
pip install --quiet torch==2.13.0 verl==0.9.1 cachetools fastapi uvicorn  # verl imports the last three and does not name them
pip install --quiet --no-deps "$WHEEL"  # verl asks for an older transformers than our trainer
pip install --quiet msgspec
export VERL_USE_EXTERNAL_MODULES=repl_rl.integrations.verl
python -c "
import numpy as np, torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.trainer.ppo.ray_trainer import compute_advantage
mask = torch.tensor([[1, 1, 0, 0, 1, 1], [1, 0, 1, 1, 1, 0]])
rewards = torch.tensor([[0.0, -0.5, 0.0, 0.0, 0.0, 1.0], [0.0] * 6])
tensors = {'response_mask': mask, 'token_level_rewards': rewards}
data = DataProto.from_dict(tensors=tensors, non_tensors={'uid': np.array(['a', 'a'], dtype=object)})
config = OmegaConf.create({'repl_rl': {'baseline': 'place'}})
done = compute_advantage(data, 'repl_rl/return_to_go', config=config)
advantages = (done.batch['advantages'] * mask).tolist()
assert advantages == [[0.5, 0.5, 0.0, 0.0, 1.0, 1.0], [-0.5, 0.0, -1.0, -1.0, -1.0, 0.0]], advantages
"
