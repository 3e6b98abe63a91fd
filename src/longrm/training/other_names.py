"""Arguments of TRL, transformers and PEFT that have another name here or none, and former names of ours.

Arguments with the same name are not here. `docs/trl_page.py` makes the table of docs/coming_from_trl.md of both.
"""

_SETTINGS = {
    "model.path": "model_name_or_path model_name model_id base_model",
    "model.lora": "use_peft peft_config",
    "model.lora.r": "lora_r lora_rank rank",
    "model.lora.lora_alpha": "alpha",
    "model.lora.target_modules": "lora_target_modules",
    "model.lora.load_in_4bit": "quantize",
    "model.bf16": "fp16 dtype torch_dtype precision",
    "model.compile": "torch_compile",
    "seed": "data_seed",
    "data.path": "dataset_name dataset train_dataset train_file data_path",
    "data.max_length": "data.max_tokens max_seq_length max_prompt_length cutoff_len",
    "data.per_step": "batch_size train_batch_size per_device_train_batch_size gradient_accumulation_steps",
    "data.group_by_length": "train_sampling_strategy",
    "memory.max_tokens_per_microbatch": "micro_batch_size auto_find_batch_size",
    "memory.gradient_checkpointing": "activation_checkpointing",
    "optimizer.learning_rate": "lr",
    "optimizer.lr_scheduler_type": "schedule",
    "optimizer.lr_scheduler_kwargs": "min_lr_rate min_learning_rate_ratio",
    "optimizer.warmup_steps": "warmup_ratio",
    "optimizer.num_train_epochs": "epochs num_epochs",
    "optimizer.max_steps": "steps",
    "loss.loss_type": "kind",
    "loss.label_smoothing": "label_smoothing_factor",
    "loss.center_rewards_coefficient": "centering",
    "loss.gamma": "simpo_gamma",
    "loss.nll_coef": "rpo_alpha cpo_alpha nll",
    "loss.epsilon": "epsilon_low",
    "loss.beta": "kl_coef kl",
    "rollouts.max_completion_length": "max_new_tokens max_tokens",
    "rollouts.reward_weights": "reward_funcs rewards",
    "parallel.shard": "fsdp deepspeed",
    "parallel.sequence_parallel_size": "parallelism_config sequence",
    "checkpoint.save_steps": "save_strategy checkpoint.every",
    "evaluation.eval_steps": "eval_strategy evaluation.every",
    "evaluation.settings": "eval_dataset",
    "evaluation.metric_for_best_model": "evaluation.metric",
    "evaluation.load_best_model_at_end": "keep_best",
    "rollouts.answer_metric": "rollouts.metric",
}
"""Settings, and other names for each of them; a dotted one is a former name that means another setting elsewhere."""

_INSTEAD = {
    "the run folder is the argument out": "output_dir",
    "the optimizer is always AdamW, with betas of 0.9 and 0.95": "optim optim_args optim_target_modules adam_beta1 "
    "adam_beta2 adam_epsilon",
    "prompts are always packed, and nothing is padded": "packing padding_free pad_to_multiple_of pad_token "
    "remove_unused_columns",
    "a row is read whole or not at all: data.too_long": "truncation_mode",
    "every step is logged": "logging_steps logging_strategy logging_first_step logging_nan_inf_filter "
    "include_num_input_tokens_seen log_completions num_completions_to_print log_unique_prompts log_multimodal",
    "report_to has no options of its own; trackers read their environment variables": "run_name project "
    "trackio_space_id trackio_bucket_id trackio_static_space_id log_completions_hub_repo",
    "the option --verbose, or Python's logging": "log_level log_level_replica log_on_each_node disable_tqdm debug "
    "skip_memory_metrics",
    "the same command or call continues a run, with its optimizer and its order of rows": "resume_from_checkpoint "
    "restore_callback_states_from_checkpoint ignore_data_skip save_only_model save_on_each_node enable_jit_checkpoint",
    "longrm push uploads a finished model": "push_to_hub hub_model_id hub_strategy hub_token hub_private_repo "
    "hub_always_push hub_revision",
    "torchrun starts the processes; no option is needed": "local_rank ddp_backend ddp_broadcast_buffers "
    "ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout accelerator_config "
    "average_tokens_across_devices ds3_gather_for_generation",
    "shards are laid out by parallel.reshard_after_forward and parallel.offload": "fsdp_config",
    "rows are read and tokenized before the first step, in several processes": "dataloader_drop_last "
    "dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers "
    "dataloader_pin_memory dataloader_prefetch_factor dataset_num_proc length_column_name label_names",
    "rows are always shuffled": "shuffle_dataset",
    "memory.keep_attention and memory.activation_offloading are its options": "gradient_checkpointing_kwargs "
    "activation_checkpointing_kwargs",
    "an evaluation is a run of longrm evaluate: evaluation.settings": "do_eval do_predict do_train "
    "eval_accumulation_steps eval_delay eval_do_concat_batches eval_on_start eval_use_gather_object "
    "per_device_eval_batch_size prediction_loss_only batch_eval_metrics include_for_metrics bf16_full_eval "
    "fp16_full_eval num_generations_eval",
    "higher is always better": "greater_is_better",
    "add a metric to METRICS (CONTRIBUTING.md): it is also reported and compared": "compute_metrics",
    "a GPU is used if there is one; CUDA_VISIBLE_DEVICES= hides it": "use_cpu",
    "torch's own settings and environment variables": "tf32 full_determinism torch_compile_backend torch_compile_mode "
    "torch_empty_cache_steps",
    "logits are always computed in chunks": "use_liger_kernel liger_kernel_config",
    "embeddings get no noise": "neftune_noise_alpha",
    "the head is always fp32": "cast_lm_head_to_fp32",
    "the model is loaded by its config.json": "model_init_kwargs use_cache router_aux_loss_coef",
    "remote code is never run": "trust_remote_code",
    "the model's own tokenizer and chat template are used": "chat_template_path chat_template_kwargs eos_token",
    "dropout is what the model's config has": "disable_dropout",
    "adapters have no dropout: a shared prompt would get one mask for all of its responses": "lora_dropout",
    "the reference is computed once, before training": "precompute_ref_log_probs precompute_ref_batch_size",
    "the reference is the model before training": "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps",
    "one loss is minimized, DPO with the reverse divergence; loss.nll_coef adds the likelihood": "loss_weights "
    "ld_alpha f_divergence_type f_alpha_divergence_coef use_weighting discopop_tau",
    "judgments are sampled by the model in training, over one prompt for all": "use_vllm vllm_mode vllm_model_impl "
    "vllm_enable_sleep_mode vllm_structured_outputs_regex vllm_server_base_url vllm_server_host vllm_server_port "
    "vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization vllm_max_model_length vllm_tensor_parallel_size "
    "vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_clip_max "
    "vllm_importance_sampling_clip_min vllm_importance_sampling_cap use_transformers_continuous_batching "
    "transformers_continuous_batching_config use_transformers_paged cache_implementation",
    "rollouts.temperature and rollouts.top_p set how judgments are sampled": "top_k min_p repetition_penalty "
    "generation_kwargs",
    "every step samples data.per_step x rollouts.num_generations judgments": "generation_batch_size "
    "steps_per_generation",
    "longrm.verdict_reward adds up its terms, then scales": "multi_objective_aggregation",
    "the divergence is always corrected, as by default in TRL": "use_bias_correction_kl",
    "ratios are those of tokens, and clipped only by loss.epsilon and loss.epsilon_high": "importance_sampling_level "
    "delta off_policy_mask_threshold sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos "
    "vespo_k_neg vespo_lambda_neg",
    "every token of a judgment counts; the term 'brief' lowers the reward of long ones": "mask_truncated_completions "
    "top_entropy_quantile",
    "the entropy is logged, and has no coefficient": "entropy_coef use_adaptive_entropy entropy_coef_min "
    "entropy_coef_max entropy_coef_delta entropy_target",
    "steps of a text are joined by blank lines": "step_separator",
    "a label of null omits a step": "train_on_last_step_only",
    "a judge calls no tools": "max_tool_calling_iterations",
}
"""What is done instead, and the arguments without a setting."""

OTHER_NAMES = {
    name: target for target, names in [*_SETTINGS.items(), *_INSTEAD.items()] for name in names.split()
}
"""The key of a setting, or, in several words, what is done instead of one."""
