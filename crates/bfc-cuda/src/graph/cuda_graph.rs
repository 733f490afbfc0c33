//! CUDA's graphs: work that the driver has prepared, to be started at once.

use std::ffi::c_void;
use std::ptr::{null, null_mut, with_exposed_provenance_mut};
use std::sync::Arc;

use bfc_core::Stream;
use cudarc::driver::result;
use cudarc::driver::sys::{
    self, CUDA_KERNEL_NODE_PARAMS, CUfunction, CUgraph, CUgraphExec, CUgraphInstantiate_flags, CUgraphNode,
    CUstreamCaptureMode,
};

use crate::compute::ComputeError;
use crate::driver::{CudaDriver, require};
use crate::kernels::{BLOCK, Job};

/// The driver's functions that graphs need beyond those for computing: CUDA 12 has them.
const FUNCTIONS: [&str; 10] = [
    "cuGraphCreate",
    "cuGraphAddKernelNode_v2",
    "cuGraphAddChildGraphNode",
    "cuGraphInstantiateWithFlags",
    "cuGraphExecKernelNodeSetParams_v2",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
];

fn call<T>(
    driver: &CudaDriver,
    name: &'static str,
    call: impl FnOnce() -> Result<T, cudarc::driver::DriverError>,
) -> Result<T, ComputeError> {
    let outcome = driver.call(name, 0, call);
    outcome.map_err(|error| ComputeError::of_driver(name, &error))
}

/// What the driver is told of a kernel. `parameters` is the address of the job, and outlives what is made here.
fn kernel_node(
    function: CUfunction,
    blocks: u32,
    parameters: &mut [*mut c_void; 1],
) -> CUDA_KERNEL_NODE_PARAMS {
    CUDA_KERNEL_NODE_PARAMS {
        func: function,
        gridDimX: blocks,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: BLOCK as u32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: parameters.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    }
}

/// The address of a job, as the driver takes the arguments of kernels.
fn argument(job: &Job) -> [*mut c_void; 1] {
    [std::ptr::from_ref(job).cast_mut().cast()]
}

/// A graph in the making: each thing comes after the one before.
pub(crate) struct Draft {
    driver: Arc<CudaDriver>,
    graph: CUgraph,
    last: CUgraphNode,
}

impl Draft {
    /// An empty one.
    ///
    /// # Errors
    /// [`ComputeError::Unavailable`] if the driver is too old for graphs; else what it says.
    pub(crate) fn new(driver: &Arc<CudaDriver>) -> Result<Self, ComputeError> {
        require(&FUNCTIONS)?;
        let mut graph = null_mut();
        // SAFETY: the driver writes one handle.
        call(driver, "cuGraphCreate", || unsafe { sys::cuGraphCreate(&raw mut graph, 0) }.result())?;
        Ok(Self { driver: Arc::clone(driver), graph, last: null_mut() })
    }

    /// What is given to a stream by `work`, which gives work to that stream and no other, and waits for nothing. The stream does
    /// none of it.
    pub(crate) fn captured(
        driver: &Arc<CudaDriver>,
        stream: &Stream,
        work: impl FnOnce() -> Result<(), ComputeError>,
    ) -> Result<Self, ComputeError> {
        let raw = with_exposed_provenance_mut(stream.handle().0 as usize);
        // What libraries do beside, such as loading their kernels, is not to be refused.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the stream is live.
        call(driver, "cuStreamBeginCapture", || unsafe { result::stream::begin_capture(raw, mode) })?;
        let given = work();
        // Whatever happened, the stream is to be ordinary again.
        // SAFETY: the stream is live and captures.
        let captured = call(driver, "cuStreamEndCapture", || unsafe { result::stream::end_capture(raw) });
        let draft = Self { driver: Arc::clone(driver), graph: captured?, last: null_mut() };
        given.map(|()| draft)
    }

    /// What comes after the node added last.
    fn after(&self) -> (*const CUgraphNode, usize) {
        if self.last.is_null() { (null(), 0) } else { (&raw const self.last, 1) }
    }

    /// Adds a kernel, which takes this job.
    ///
    /// # Safety
    /// The kernel takes one job, and is of a module that stays loaded.
    pub(crate) unsafe fn add_kernel(
        &mut self,
        function: CUfunction,
        blocks: u32,
        job: &Job,
    ) -> Result<Node, ComputeError> {
        let (mut node, mut argument, (after, count)) = (null_mut(), argument(job), self.after());
        let kernel = kernel_node(function, blocks, &mut argument);
        call(&self.driver, "cuGraphAddKernelNode", || {
            // SAFETY: the graph and the node before are ours; the driver copies the job, and writes one handle.
            unsafe {
                sys::cuGraphAddKernelNode_v2(&raw mut node, self.graph, after, count, &raw const kernel)
            }
            .result()
        })?;
        self.last = node;
        Ok(Node(node.expose_provenance()))
    }

    /// Adds all of another graph.
    pub(crate) fn add_all(&mut self, other: &Self) -> Result<Node, ComputeError> {
        let (mut node, (after, count)) = (null_mut(), self.after());
        call(&self.driver, "cuGraphAddChildGraphNode", || {
            // SAFETY: the graphs and the node before are ours; the driver copies the other, and writes one handle.
            unsafe { sys::cuGraphAddChildGraphNode(&raw mut node, self.graph, after, count, other.graph) }
                .result()
        })?;
        self.last = node;
        Ok(Node(node.expose_provenance()))
    }

    /// The graph, ready to be started.
    pub(crate) fn finish(self) -> Result<Graph, ComputeError> {
        let flags = CUgraphInstantiate_flags(0);
        let executable = call(&self.driver, "cuGraphInstantiate", || {
            // SAFETY: the graph is ours.
            unsafe { result::graph::instantiate(self.graph, flags) }
        })?;
        Ok(Graph {
            driver: Arc::clone(&self.driver),
            executable: executable.expose_provenance(),
            _draft: self,
        })
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        // SAFETY: the graph is ours, and nobody has it any more.
        let _ = call(&self.driver, "cuGraphDestroy", || unsafe { result::graph::destroy(self.graph) });
    }
}

/// A place in a graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node(usize);

/// A graph that can be started.
pub(crate) struct Graph {
    driver: Arc<CudaDriver>,
    executable: usize,
    /// Its nodes name those of the executable.
    _draft: Draft,
}

// SAFETY: the driver's handles are used by whoever has the value, one thread at a time.
unsafe impl Send for Draft {}

impl Graph {
    fn raw(&self) -> CUgraphExec {
        with_exposed_provenance_mut(self.executable)
    }

    /// Puts the same kernel with another job in a kernel's place, from the next start on.
    ///
    /// # Safety
    /// The node is one of a kernel of this graph, and the kernel is that.
    pub(crate) unsafe fn replace(
        &mut self,
        Node(node): Node,
        function: CUfunction,
        blocks: u32,
        job: &Job,
    ) -> Result<(), ComputeError> {
        let mut argument = argument(job);
        let kernel = kernel_node(function, blocks, &mut argument);
        call(&self.driver, "cuGraphExecKernelNodeSetParams", || {
            let node = with_exposed_provenance_mut(node);
            // SAFETY: the graph is ours and has the node, as the caller says; the driver copies the job.
            unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.raw(), node, &raw const kernel) }.result()
        })
    }

    /// Gives all of it to a stream.
    ///
    /// # Safety
    /// As for each thing that is in it.
    pub(crate) unsafe fn start(&self, stream: &Stream) -> Result<(), ComputeError> {
        let stream = with_exposed_provenance_mut(stream.handle().0 as usize);
        // SAFETY: the graph is ours, the stream is live, and the caller vouches for the rest.
        call(&self.driver, "cuGraphLaunch", || unsafe { result::graph::launch(self.raw(), stream) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: the graph is ours, and nobody has it any more; what was started goes on.
        let _ =
            call(&self.driver, "cuGraphExecDestroy", || unsafe { result::graph::exec_destroy(self.raw()) });
    }
}
