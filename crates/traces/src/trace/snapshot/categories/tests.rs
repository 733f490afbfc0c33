//! Each rule on a small run.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use bfc_core::Category::{
    self, Activation, Cache, Gradient, Input, OptimizerState, Parameter, Temporary, Workspace,
};

use crate::trace::{ReadOptions, Snapshot};

/// A stack, as function and file, innermost first.
type Stack = &'static [(&'static str, &'static str)];

const MAIN: (&str, &str) = ("<module>", "/home/user/train.py");
const TO_DEVICE: Stack = &[
    ("convert", "/site/torch/nn/modules/module.py"),
    ("_apply", "/site/torch/nn/modules/module.py"),
    ("to", "/site/torch/nn/modules/module.py"),
    MAIN,
];
const LOAD: Stack = &[MAIN];
const LINEAR: Stack = &[
    ("forward", "/site/torch/nn/modules/linear.py"),
    ("_call_impl", "/site/torch/nn/modules/module.py"),
    MAIN,
];
const RELU: Stack = &[("relu", "/site/torch/nn/functional.py"), ("forward", "/home/user/model.py"), MAIN];
const LOSS: Stack = &[("cross_entropy", "/site/torch/nn/functional.py"), MAIN];
const SCALE: Stack = &[("loss_of", "/home/user/train.py"), MAIN];
const ROOT: Stack = &[("_make_grads", "/site/torch/autograd/__init__.py"), MAIN];
const ENGINE: Stack = &[];
const STATE: Stack = &[
    ("_init_group", "/site/torch/optim/adam.py"),
    ("step", "/site/torch/optim/adam.py"),
    ("wrapper", "/site/torch/optim/optimizer.py"),
    MAIN,
];
const UPDATE: Stack =
    &[("_multi_tensor_adam", "/site/torch/optim/adam.py"), ("step", "/site/torch/optim/adam.py"), MAIN];
const ZERO_GRAD: Stack = &[("zero_grad", "/site/torch/optim/optimizer.py"), MAIN];

/// A run that is recorded.
#[derive(Default)]
struct Run {
    events: Vec<String>,
    blocks: Vec<(u64, u64)>,
    /// The blocks that are older than the first event and live at the end.
    older: Vec<(u64, u64, Stack)>,
    more: String,
}

fn frames(stack: Stack) -> String {
    let frame = |(name, file): &(&str, &str)| format!(r#"{{"name":"{name}","filename":"{file}","line":1}}"#);
    format!("[{}]", stack.iter().map(frame).collect::<Vec<_>>().join(","))
}

impl Run {
    fn alloc(&mut self, bytes: u64, stack: Stack) -> usize {
        let address = 4096 * (self.blocks.len() as u64 + 1);
        let (frames, more) = (frames(stack), std::mem::take(&mut self.more));
        self.events.push(format!(
            r#"{{"action":"alloc","addr":{address},"size":{bytes},"stream":0,"frames":{frames}{more}}}"#
        ));
        self.blocks.push((address, bytes));
        self.blocks.len() - 1
    }

    fn free(&mut self, block: usize, stack: Stack) {
        let ((address, bytes), frames) = (self.blocks[block], frames(stack));
        self.events.push(format!(
            r#"{{"action":"free_completed","addr":{address},"size":{bytes},"stream":0,"frames":{frames}}}"#
        ));
    }

    fn older(&mut self, bytes: u64, stack: Stack) {
        self.older.push(((1 << 30) + 4096 * self.older.len() as u64, bytes, stack));
    }

    /// Returns the categories of all blocks, those that are older than the first event first.
    fn categories(&self) -> Vec<Category> {
        let block = |&(address, bytes, stack): &(u64, u64, Stack)| {
            let frames = frames(stack);
            format!(
                r#"{{"address":{address},"total_size":4096,"stream":0,"blocks":[{{"size":4096,
                "requested_size":{bytes},"state":"active_allocated","frames":{frames}}}]}}"#
            )
        };
        let segments: Vec<_> = self.older.iter().map(block).collect();
        let json = format!(
            r#"{{"device_traces":[[{}]],"segments":[{}]}}"#,
            self.events.join(","),
            segments.join(",")
        );
        let snapshot = Snapshot::read(json.as_bytes(), &ReadOptions::default()).unwrap();
        snapshot.recording().blocks().iter().map(|block| block.category).collect()
    }

    fn category(&self, block: usize) -> Category {
        self.categories()[block + self.older.len()]
    }
}

/// A run with a model of one parameter of 1000 bytes.
fn with_model() -> Run {
    let mut run = Run::default();
    run.alloc(1000, TO_DEVICE);
    run
}

#[test]
fn a_training_step_has_all_categories() {
    let mut run = with_model();
    let batch = run.alloc(300, LOAD);
    let hidden = run.alloc(500, LINEAR);
    let scratch = run.alloc(501, LINEAR);
    run.free(scratch, LINEAR);
    let output = run.alloc(502, RELU);
    let root = run.alloc(4, ROOT);
    let (hidden_gradient, gradient) = (run.alloc(500, ENGINE), run.alloc(1000, ENGINE));
    run.free(hidden_gradient, ENGINE);
    run.free(hidden, ENGINE);
    let state = run.alloc(1000, STATE);
    let update = run.alloc(1000, UPDATE);
    run.free(update, UPDATE);
    run.free(gradient, ZERO_GRAD);
    let next_batch = run.alloc(300, LOAD);
    run.free(batch, LOAD);
    let next_hidden = run.alloc(500, LINEAR);
    run.free(output, LOAD);
    let categories = run.categories();
    let expected = [
        (0, Parameter),
        (batch, Input),
        (hidden, Activation),
        (scratch, Temporary),
        (output, Temporary),
        (root, Temporary),
        (hidden_gradient, Temporary),
        (gradient, Gradient),
        (state, OptimizerState),
        (update, Temporary),
        (next_batch, Input),
        (next_hidden, Temporary),
    ];
    for (block, category) in expected {
        assert_eq!(categories[block], category, "block {block}");
    }
}

#[test]
fn gradients_that_the_program_frees_after_the_pass_are_gradients() {
    // The optimizer allocates nothing, so nothing separates the pass from `zero_grad`.
    for knows_frees in [true, false] {
        let mut run = with_model();
        let hidden = run.alloc(500, LINEAR);
        let (gradient, last) = (run.alloc(1000, ENGINE), run.alloc(500, ENGINE));
        run.free(hidden, if knows_frees { ENGINE } else { LINEAR });
        run.free(last, ENGINE);
        run.free(gradient, if knows_frees { ZERO_GRAD } else { ENGINE });
        run.alloc(500, LINEAR);
        assert_eq!(run.category(gradient), Gradient, "stacks of frees: {knows_frees}");
        assert_eq!(run.category(last), Temporary, "stacks of frees: {knows_frees}");
        assert_eq!(run.category(hidden), Activation, "stacks of frees: {knows_frees}");
    }
}

#[test]
fn results_that_the_program_frees_right_after_the_pass_are_temporary() {
    let mut run = with_model();
    let (hidden, loss) = (run.alloc(500, LINEAR), run.alloc(4, LOSS));
    run.alloc(1000, ENGINE);
    run.free(hidden, ENGINE);
    run.free(loss, LOAD);
    run.alloc(1000, STATE);
    assert_eq!((run.category(hidden), run.category(loss)), (Activation, Temporary));
}

#[test]
fn intermediate_results_are_activations_though_the_program_holds_them() {
    let mut run = with_model();
    let hidden = run.alloc(500, LINEAR);
    for _ in 0..10 {
        let scratch = run.alloc(501, RELU);
        run.free(scratch, RELU);
    }
    let output = run.alloc(502, LINEAR);
    run.alloc(1000, ENGINE);
    run.alloc(1000, STATE);
    run.alloc(300, LOAD);
    run.alloc(500, LINEAR);
    run.free(hidden, LOAD);
    run.free(output, LOAD);
    assert_eq!((run.category(hidden), run.category(output)), (Activation, Temporary));
}

#[test]
fn frames_of_the_engine_show_the_backward_pass() {
    const NODE: Stack = &[
        ("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", ""),
        ("torch::autograd::generated::AddmmBackward0::apply(std::vector<at::Tensor>&&)", ""),
        ("torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)", ""),
    ];
    const NATIVE: Stack = &[("at::_ops::linear::call()", ""), LINEAR[0], MAIN];
    let mut run = with_model();
    let hidden = run.alloc(500, NATIVE);
    let gradient = run.alloc(1000, NODE);
    run.free(hidden, NODE);
    run.alloc(1000, STATE);
    assert_eq!((run.category(hidden), run.category(gradient)), (Activation, Gradient));
}

#[test]
fn a_checkpoint_computes_activations_again_in_the_backward_pass() {
    const AGAIN: Stack = &[LINEAR[0], ("unpack_hook", "/site/torch/utils/checkpoint.py")];
    let mut run = with_model();
    let input = run.alloc(500, LINEAR);
    let dropped = run.alloc(500, LINEAR);
    run.free(dropped, LINEAR);
    run.alloc(500, ENGINE);
    let (scratch, again) = (run.alloc(501, AGAIN), run.alloc(502, AGAIN));
    run.free(scratch, AGAIN);
    let gradient = run.alloc(1000, ENGINE);
    run.free(again, ENGINE);
    run.free(input, ENGINE);
    run.alloc(1000, STATE);
    let categories = [input, dropped, scratch, again, gradient].map(|block| run.category(block));
    assert_eq!(categories, [Activation, Temporary, Temporary, Activation, Gradient]);
}

#[test]
fn custom_functions_run_in_the_backward_pass() {
    const CUSTOM: Stack =
        &[("backward", "/home/user/model.py"), ("apply", "/site/torch/autograd/function.py")];
    let mut run = with_model();
    let hidden = run.alloc(500, LINEAR);
    let (scratch, gradient) = (run.alloc(500, CUSTOM), run.alloc(1000, CUSTOM));
    run.alloc(1, ENGINE);
    run.free(scratch, ENGINE);
    run.free(hidden, ENGINE);
    run.alloc(1000, STATE);
    let categories = [hidden, scratch, gradient].map(|block| run.category(block));
    assert_eq!(categories, [Activation, Temporary, Gradient]);
}

#[test]
fn a_closure_belongs_to_the_forward_pass() {
    const CLOSURE: Stack = &[
        ("forward", "/site/torch/nn/modules/linear.py"),
        ("closure", "/home/user/train.py"),
        ("step", "/site/torch/optim/lbfgs.py"),
        MAIN,
    ];
    let mut run = with_model();
    let hidden = run.alloc(500, CLOSURE);
    run.alloc(1000, ENGINE);
    run.free(hidden, ENGINE);
    run.alloc(1000, UPDATE);
    assert_eq!(run.category(hidden), Activation);
}

#[test]
fn activations_are_live_when_the_forward_pass_runs_out_of_memory() {
    const NORM: Stack = &[("forward", "/site/torch/nn/modules/normalization.py"), MAIN];
    const DROPOUT: Stack = &[("forward", "/site/torch/nn/modules/dropout.py"), MAIN];
    let mut run = with_model();
    let blocks = [LINEAR, RELU, NORM, DROPOUT].map(|stack| run.alloc(500, stack));
    for block in blocks {
        assert_eq!(run.category(block), Activation);
    }
    // Without training, the result of each op is free after the next one.
    let mut run = with_model();
    let mut last = run.alloc(500, LINEAR);
    for stack in [RELU, NORM, DROPOUT] {
        let next = run.alloc(500, stack);
        run.free(last, stack);
        last = next;
    }
    assert!((1..=last).all(|block| run.category(block) == Temporary));
}

#[test]
fn activations_are_live_when_the_backward_pass_runs_out_of_memory() {
    let mut run = with_model();
    let hidden = run.alloc(500, LINEAR);
    let (gradient, other) = (run.alloc(1000, ENGINE), run.alloc(500, ENGINE));
    let categories = [hidden, gradient, other].map(|block| run.category(block));
    assert_eq!(categories, [Activation, Gradient, Temporary]);
}

#[test]
fn a_cache_of_keys_and_values_is_one_without_training() {
    const UPDATE_CACHE: Stack = &[
        ("update", "/site/transformers/cache_utils.py"),
        ("forward", "/site/transformers/models/llama/modeling_llama.py"),
        MAIN,
    ];
    let mut run = with_model();
    let batch = run.alloc(300, LOAD);
    let keys = run.alloc(500, UPDATE_CACHE);
    assert_eq!([run.category(0), run.category(batch), run.category(keys)], [Parameter, Input, Cache]);
    // Attention saves them for the backward pass.
    run.alloc(1000, ENGINE);
    run.alloc(1000, STATE);
    run.free(keys, LOAD);
    assert_eq!(run.category(keys), Activation);
}

#[test]
fn optimizers_in_the_backward_pass_free_gradients_there() {
    const IN_HOOK: Stack = &[("_init_group", "/site/torch/optim/adam.py"), ("hook", "/home/user/train.py")];
    let mut run = with_model();
    let hidden = run.alloc(500, LINEAR);
    let gradient = run.alloc(1000, ENGINE);
    let state = run.alloc(1000, IN_HOOK);
    run.free(gradient, IN_HOOK);
    run.alloc(500, ENGINE);
    run.free(hidden, ENGINE);
    run.alloc(300, LOAD);
    let categories = [hidden, gradient, state].map(|block| run.category(block));
    assert_eq!(categories, [Activation, Gradient, OptimizerState]);
}

#[test]
fn parameters_without_a_module_have_the_sizes_of_gradients() {
    let mut run = Run::default();
    let (parameter, batch) = (run.alloc(1000, LOAD), run.alloc(300, LOAD));
    let hidden = run.alloc(500, SCALE);
    run.alloc(4, LOSS);
    run.alloc(1000, ENGINE);
    run.free(hidden, ENGINE);
    run.alloc(1000, STATE);
    let categories = [parameter, batch, hidden].map(|block| run.category(block));
    assert_eq!(categories[0], Parameter);
    assert_ne!(categories[2], Gradient);
    assert_eq!(categories[1], Input);
}

#[test]
fn copies_of_sizes_show_the_state_of_earlier_blocks() {
    // Two parameters with two copies of state each. The gradients are allocated in each step.
    let mut run = Run::default();
    for bytes in [1000, 64] {
        for _ in 0..3 {
            run.older(bytes, &[]);
        }
    }
    run.alloc(500, LINEAR);
    run.alloc(1000, ENGINE);
    run.alloc(64, ENGINE);
    run.alloc(1, UPDATE);
    run.free(1, ZERO_GRAD);
    run.free(2, ZERO_GRAD);
    let count =
        |run: &Run, category| run.categories()[..6].iter().filter(|&&found| found == category).count();
    assert_eq!([count(&run, Parameter), count(&run, OptimizerState)], [2, 4]);

    // The gradients stay in place: momentum, and one gradient for each parameter.
    let mut run = Run::default();
    for bytes in [1000, 64] {
        for _ in 0..3 {
            run.older(bytes, &[]);
        }
    }
    run.alloc(500, LINEAR);
    for bytes in [1000, 64] {
        let scratch = run.alloc(bytes, ENGINE);
        run.free(scratch, ENGINE);
    }
    run.alloc(500, ENGINE);
    run.alloc(500, LINEAR);
    let counts = [Parameter, Gradient, OptimizerState].map(|category| count(&run, category));
    assert_eq!(counts, [2, 2, 2]);
}

#[test]
fn earlier_blocks_of_a_run_without_training_are_parameters() {
    let mut run = Run::default();
    run.older(1000, &[]);
    run.older(1000, &[]);
    let hidden = run.alloc(500, LINEAR);
    run.free(hidden, LINEAR);
    assert_eq!(run.categories(), [Parameter, Parameter, Temporary]);
}

#[test]
fn earlier_blocks_keep_their_stacks() {
    let mut run = Run::default();
    for stack in [TO_DEVICE, STATE, LINEAR] {
        run.older(1000, stack);
    }
    assert_eq!(run.categories(), [Parameter, OptimizerState, Activation]);
}

#[test]
fn workspaces_of_libraries_are_no_gradients() {
    const WORKSPACE: Stack = &[("at::cuda::getNewWorkspace()", ""), LINEAR[0], MAIN];
    let mut run = with_model();
    run.alloc(500, LINEAR);
    let (of_pass, named) = (run.alloc(8_519_680, ENGINE), run.alloc(77, WORKSPACE));
    run.alloc(1000, STATE);
    assert_eq!([run.category(of_pass), run.category(named)], [Workspace, Workspace]);
}

#[test]
fn stated_categories_count() {
    for field in ["category", "user_metadata"] {
        let mut run = with_model();
        run.more = format!(r#","{field}":"communication""#);
        let block = run.alloc(500, LINEAR);
        assert_eq!(run.category(block), Category::Communication, "{field}");
    }
}

#[test]
fn without_stacks_nothing_is_known() {
    let mut run = Run::default();
    run.alloc(500, &[]);
    run.older(500, &[]);
    assert_eq!(run.categories(), [Temporary, Temporary]);
}
