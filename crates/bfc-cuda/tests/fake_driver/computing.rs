//! Kernels, products and graphs of the fake driver, and a fake compiler and cuBLAS.
//!
//! The compiler compiles nothing. The driver executes a few kernels: `fill_f32`, two functions of `arithmetic_f32`,
//! one-row sums of `reduce_rows_f32`, and one product of `matmul_f32`. The cuBLAS multiplies f32 matrices. Graphs must
//! be chains. Captured work is not executed.
//!
//! `FAKE_CUDA_WRONG` makes sums wrong. Code and cuBLAS need `FAKE_CUDA_ROOM` bytes of free device memory; cuBLAS fails
//! to start `FAKE_CUBLAS_FAILS` times.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Mutex;

use crate::functions::functions;
use crate::{INVALID_VALUE, OTHERS, Others, SUCCESS, answer, code, others};

/// The code of every module: what the compiler makes of every source.
const CODE: &[u8] = b"code without a device";
const NOT_SUPPORTED: u32 = 801;

// Offsets of the fields of a job, in bytes.
const INPUT: usize = 152;
const OUTPUT: usize = 448;
const FUNCTION: usize = 496;
const COUNTS: usize = 504;
const CONSTANT: usize = 552;
const INTEGERS: usize = 624;
const OPERAND: usize = 88;
const JOB: usize = 640;

type Job = [u8; JOB];

#[derive(Clone, Copy)]
enum Work {
    Fill(Job),
    Arithmetic(Job),
    Sum(Job),
    Product(Product),
}

#[derive(Clone, Copy)]
struct Product {
    sizes: [u64; 3],
    left: (u64, bool, u64),
    right: (u64, bool, u64),
    out: u64,
}

#[derive(Default)]
struct Graph {
    /// Nodes in order, with their work.
    nodes: Vec<(usize, Vec<Work>)>,
}

#[derive(Default)]
struct Graphs {
    next: usize,
    /// Modules that are loaded, and handles of the library.
    modules: BTreeSet<usize>,
    handles: usize,
    failures: u32,
    graphs: BTreeMap<usize, Graph>,
    ready: BTreeMap<usize, Graph>,
    /// Graphs under capture, by stream.
    captures: BTreeMap<usize, Graph>,
    /// The stream that products go to.
    products: usize,
}

static GRAPHS: Mutex<Graphs> = Mutex::new(Graphs {
    next: 0,
    modules: BTreeSet::new(),
    handles: 0,
    failures: 0,
    graphs: BTreeMap::new(),
    ready: BTreeMap::new(),
    captures: BTreeMap::new(),
    products: 0,
});

/// The number of live objects.
pub(crate) fn live() -> usize {
    let graphs = GRAPHS.lock().unwrap();
    let prepared = graphs.graphs.len() + graphs.ready.len() + graphs.captures.len();
    graphs.modules.len() + graphs.handles + prepared
}

/// Whether the device has memory for code or a library.
fn room() -> Result<(), u32> {
    let context = crate::context()?;
    let plain = |live: &BTreeMap<u64, (usize, usize)>| -> usize {
        live.values().filter(|(_, owner)| *owner == context).map(|(bytes, _)| bytes).sum()
    };
    let plain = plain(&crate::DEVICE.lock().unwrap());
    let mapped: usize = OTHERS.lock().unwrap().mappings.values().map(|(bytes, _)| bytes).sum();
    let wanted = crate::setting("FAKE_CUDA_ROOM").unwrap_or(0) as usize;
    if plain + mapped + wanted > crate::TOTAL { Err(crate::OUT_OF_MEMORY) } else { Ok(()) }
}

impl Graphs {
    fn number(&mut self) -> usize {
        self.next += 16;
        self.next
    }

    /// Adds a node, if it comes after the last one.
    fn add(&mut self, graph: usize, after: Option<usize>, work: Vec<Work>) -> Result<usize, u32> {
        let node = self.number();
        let graph = self.graphs.get_mut(&graph).ok_or(INVALID_VALUE)?;
        if graph.nodes.last().map(|(last, _)| *last) != after {
            return Err(INVALID_VALUE);
        }
        graph.nodes.push((node, work));
        Ok(node)
    }

    /// Executes or captures the work.
    fn give(&mut self, stream: usize, work: Work) -> Result<(), u32> {
        let node = self.number();
        if let Some(graph) = self.captures.get_mut(&stream) {
            graph.nodes.push((node, vec![work]));
            return Ok(());
        }
        others(|others, _| {
            others.streams.get(&stream).ok_or(INVALID_VALUE)?;
            others.compute(&work)
        })
    }
}

fn field<const N: usize>(job: &Job, place: usize) -> [u8; N] {
    job[place..place + N].try_into().unwrap()
}

fn number(job: &Job, place: usize) -> u64 {
    u64::from_ne_bytes(field(job, place))
}

impl Others {
    fn read(&self, address: u64) -> f32 {
        let mut bytes = [0; 4];
        self.get(address, &mut bytes);
        f32::from_ne_bytes(bytes)
    }

    fn write(&mut self, address: u64, value: f32) {
        self.put(address, &value.to_ne_bytes());
    }

    fn compute(&mut self, work: &Work) -> Result<(), u32> {
        match work {
            Work::Fill(job) | Work::Arithmetic(job) => {
                let (count, from, to) = (number(job, 0), number(job, INPUT), number(job, OUTPUT));
                let constant = f64::from_ne_bytes(field(job, CONSTANT)) as f32;
                self.check(to, count as usize * 4)?;
                for n in 0..count {
                    let value = match (work, number(job, FUNCTION)) {
                        (Work::Fill(_), _) => constant,
                        (_, 4) => self.read(from + 4 * n) + constant,
                        (_, 5) => self.read(from + 4 * n) * constant,
                        _ => return Err(INVALID_VALUE),
                    };
                    self.write(to + 4 * n, value);
                }
            }
            Work::Sum(job) => {
                let sum: f32 = (0..number(job, COUNTS)).map(|n| self.read(number(job, INPUT) + 4 * n)).sum();
                let wrong = std::env::var_os("FAKE_CUDA_WRONG").is_some();
                self.check(number(job, OUTPUT), 4)?;
                self.write(number(job, OUTPUT), sum + f32::from(u8::from(wrong)));
            }
            Work::Product(Product { sizes: [rows, columns, depth], left, right, out }) => {
                let at = |(address, turned, leading): (u64, bool, u64), i, k| {
                    address + 4 * if turned { k + i * leading } else { i + k * leading }
                };
                for i in 0..*rows {
                    for j in 0..*columns {
                        let term = |k| self.read(at(*left, i, k)) * self.read(at(*right, k, j));
                        let sum = (0..*depth).map(term).sum();
                        self.write(out + 4 * (i + j * rows), sum);
                    }
                }
            }
        }
        Ok(())
    }
}

/// The work of a kernel launch.
unsafe fn kernel(function: usize, arguments: *const *const Job) -> Result<Work, u32> {
    // SAFETY: kernels take one job, whose address is the first argument.
    let job = unsafe { **arguments };
    match function {
        1 => Ok(Work::Fill(job)),
        2 => Ok(Work::Arithmetic(job)),
        3 => Ok(Work::Sum(job)),
        // Row-major matrices are the library's transposed ones, so the factors change places.
        4 => {
            let of = |n: usize| number(&job, COUNTS + 8 * n);
            let [rows, columns, depth] = [of(0), of(1), of(2)];
            if (of(3), of(4), of(5), number(&job, INTEGERS)) != (depth, 1, columns, 1) {
                return Err(INVALID_VALUE);
            }
            let left = (number(&job, INPUT + OPERAND), false, columns);
            let right = (number(&job, INPUT), false, depth);
            let out = number(&job, OUTPUT);
            Ok(Work::Product(Product { sizes: [columns, rows, depth], left, right, out }))
        }
        _ => Err(INVALID_VALUE),
    }
}

/// The parameters of a kernel node.
#[repr(C)]
pub struct KernelNode {
    function: usize,
    sizes: [c_uint; 7],
    arguments: *const *const Job,
    nothing: [usize; 3],
}

impl KernelNode {
    unsafe fn work(&self) -> Result<Work, u32> {
        if self.sizes[0] == 0 || self.sizes[1..] != [1, 1, 256, 1, 1, 0] || self.nothing != [0; 3] {
            return Err(INVALID_VALUE);
        }
        // SAFETY: as the caller says.
        unsafe { kernel(self.function, self.arguments) }
    }
}

/// The dependency of a node.
unsafe fn one(after: *const usize, count: usize) -> Result<Option<usize>, u32> {
    match count {
        0 => Ok(None),
        // SAFETY: callers name as many nodes as they say.
        1 => Ok(Some(unsafe { *after })),
        _ => Err(INVALID_VALUE),
    }
}

fn graphs<T>(call: impl FnOnce(&mut Graphs) -> Result<T, u32>) -> Result<T, u32> {
    others(|_, _| Ok(()))?;
    call(&mut GRAPHS.lock().unwrap())
}

functions! {
    cuModuleLoadData(module: *mut usize, image: *const u8) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        let known = CODE.iter().enumerate().all(|(n, byte)| unsafe { *image.add(n) } == *byte);
        let load = |graphs: &mut Graphs| {
            room()?;
            let number = graphs.number();
            graphs.modules.insert(number);
            if known { Ok(number) } else { Err(INVALID_VALUE) }
        };
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(module, graphs(load)) }
    }
    cuModuleUnload(module: usize) {
        code(graphs(|graphs| if graphs.modules.remove(&module) { Ok(()) } else { Err(INVALID_VALUE) }))
    }
    cuModuleGetFunction(function: *mut usize, module: usize, name: *const c_char) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        let number = match unsafe { CStr::from_ptr(name) }.to_bytes() {
            b"fill_f32" => Ok(1),
            b"arithmetic_f32" => Ok(2),
            b"reduce_rows_f32" => Ok(3),
            b"matmul_f32" => Ok(4),
            _ => Err(INVALID_VALUE),
        };
        let known = graphs(|graphs| Ok(graphs.modules.contains(&module))) == Ok(true);
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(function, if known { number } else { Err(INVALID_VALUE) }) }
    }
    cuLaunchKernel(function: usize, blocks: c_uint, _y: c_uint, _z: c_uint, threads: c_uint, _ty: c_uint, _tz: c_uint,
                   _shared: c_uint, stream: usize, arguments: *const *const Job, _extra: *const c_void) {
        code(graphs(|graphs| {
            // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
            let work = unsafe { kernel(function, arguments) }?;
            if blocks == 0 || threads != 256 { Err(INVALID_VALUE) } else { graphs.give(stream, work) }
        }))
    }
    cuStreamSynchronize(stream: usize) {
        code(others(|others, _| others.streams.get(&stream).map(|_| ()).ok_or(INVALID_VALUE)))
    }
    cuStreamBeginCapture_v2(stream: usize, mode: c_uint) {
        code(graphs(|graphs| {
            let known = OTHERS.lock().unwrap().streams.contains_key(&stream);
            if !known || mode != 2 || graphs.captures.contains_key(&stream) {
                return Err(INVALID_VALUE);
            }
            graphs.captures.insert(stream, Graph::default());
            Ok(())
        }))
    }
    cuStreamEndCapture(stream: usize, graph: *mut usize) {
        let end = |graphs: &mut Graphs| {
            let captured = graphs.captures.remove(&stream).ok_or(INVALID_VALUE)?;
            let number = graphs.number();
            graphs.graphs.insert(number, captured);
            Ok(number)
        };
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(graph, graphs(end)) }
    }
    cuGraphCreate(graph: *mut usize, _flags: c_uint) {
        if std::env::var_os("FAKE_CUDA_NO_GRAPHS").is_some() {
            return NOT_SUPPORTED;
        }
        let create = |graphs: &mut Graphs| {
            let number = graphs.number();
            graphs.graphs.insert(number, Graph::default());
            Ok(number)
        };
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(graph, graphs(create)) }
    }
    cuGraphAddKernelNode_v2(node: *mut usize, graph: usize, after: *const usize, count: usize, kernel: *const KernelNode) {
        let add = |graphs: &mut Graphs| {
            // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
            let work = unsafe { (*kernel).work() }?;
            // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
            graphs.add(graph, unsafe { one(after, count) }?, vec![work])
        };
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(node, graphs(add)) }
    }
    cuGraphAddChildGraphNode(node: *mut usize, graph: usize, after: *const usize, count: usize, child: usize) {
        let add = |graphs: &mut Graphs| {
            let child = graphs.graphs.get(&child).ok_or(INVALID_VALUE)?;
            let work: Vec<Work> = child.nodes.iter().flat_map(|(_, work)| work.clone()).collect();
            // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
            graphs.add(graph, unsafe { one(after, count) }?, work)
        };
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(node, graphs(add)) }
    }
    cuGraphInstantiateWithFlags(ready: *mut usize, graph: usize, flags: u64) {
        let instantiate = |graphs: &mut Graphs| {
            let nodes = graphs.graphs.get(&graph).filter(|_| flags == 0).ok_or(INVALID_VALUE)?.nodes.clone();
            let number = graphs.number();
            graphs.ready.insert(number, Graph { nodes });
            Ok(number)
        };
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(ready, graphs(instantiate)) }
    }
    cuGraphExecKernelNodeSetParams_v2(ready: usize, node: usize, kernel: *const KernelNode) {
        code(graphs(|graphs| {
            // The node belongs to the original graph.
            if !graphs.graphs.values().any(|graph| graph.nodes.iter().any(|(there, _)| *there == node)) {
                return Err(INVALID_VALUE);
            }
            let graph = graphs.ready.get_mut(&ready).ok_or(INVALID_VALUE)?;
            let there = graph.nodes.iter_mut().find(|(there, _)| *there == node).ok_or(INVALID_VALUE)?;
            // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
            let by = unsafe { (*kernel).work() }?;
            match (there.1.as_slice(), &by) {
                ([Work::Fill(_)], Work::Fill(_)) | ([Work::Arithmetic(_)], Work::Arithmetic(_)) => there.1 = vec![by],
                _ => return Err(INVALID_VALUE),
            }
            Ok(())
        }))
    }
    cuGraphLaunch(ready: usize, stream: usize) {
        code(graphs(|graphs| {
            let work = graphs.ready.get(&ready).ok_or(INVALID_VALUE)?.nodes.clone();
            work.into_iter().flat_map(|(_, work)| work).try_for_each(|work| graphs.give(stream, work))
        }))
    }
    cuGraphExecDestroy(ready: usize) {
        code(graphs(|graphs| graphs.ready.remove(&ready).map(|_| ()).ok_or(INVALID_VALUE)))
    }
    cuGraphDestroy(graph: usize) {
        code(graphs(|graphs| graphs.graphs.remove(&graph).map(|_| ()).ok_or(INVALID_VALUE)))
    }
}

functions! {
    nvrtcVersion(major: *mut c_int, minor: *mut c_int) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { (*major, *minor) = (13, 0) };
        SUCCESS
    }
    nvrtcGetNumSupportedArchs(count: *mut c_int) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(count, Ok(1)) }
    }
    nvrtcGetSupportedArchs(architectures: *mut c_int) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(architectures, Ok(70)) }
    }
    nvrtcCreateProgram(program: *mut usize, _source: *const c_char, _name: *const c_char, _headers: c_int,
                       _texts: *const c_void, _names: *const c_void) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(program, Ok(1)) }
    }
    nvrtcDestroyProgram(_program: *mut usize) {
        SUCCESS
    }
    nvrtcCompileProgram(_program: usize, _count: c_int, _options: *const c_void) {
        SUCCESS
    }
    nvrtcGetProgramLogSize(_program: usize, size: *mut usize) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(size, Ok(1)) }
    }
    nvrtcGetProgramLog(_program: usize, text: *mut u8) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(text, Ok(0)) }
    }
    nvrtcGetPTXSize(_program: usize, size: *mut usize) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(size, Ok(CODE.len())) }
    }
    nvrtcGetPTX(_program: usize, text: *mut u8) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { text.copy_from_nonoverlapping(CODE.as_ptr(), CODE.len()) };
        SUCCESS
    }
    nvrtcGetCUBINSize(_program: usize, size: *mut usize) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(size, Ok(CODE.len())) }
    }
    nvrtcGetCUBIN(_program: usize, text: *mut u8) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { text.copy_from_nonoverlapping(CODE.as_ptr(), CODE.len()) };
        SUCCESS
    }
}

functions! {
    cublasCreate_v2(handle: *mut usize) {
        let full = room().is_err();
        let mut graphs = GRAPHS.lock().unwrap();
        graphs.failures += 1;
        let fails = graphs.failures <= crate::setting("FAKE_CUBLAS_FAILS").unwrap_or(0);
        graphs.handles += usize::from(!full && !fails);
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(handle, if full { Err(3) } else if fails { Err(1) } else { Ok(5) }) }
    }
    cublasDestroy_v2(_handle: usize) {
        GRAPHS.lock().unwrap().handles -= 1;
        SUCCESS
    }
    cublasSetStream_v2(_handle: usize, stream: usize) {
        GRAPHS.lock().unwrap().products = stream;
        SUCCESS
    }
    cublasSetMathMode(_handle: usize, _mode: c_int) {
        SUCCESS
    }
    cublasGetVersion_v2(_handle: usize, version: *mut c_int) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        unsafe { answer(version, Ok(130_000)) }
    }
    cublasSetWorkspace_v2(_handle: usize, workspace: usize, _bytes: usize) {
        if workspace % 256 == 0 { SUCCESS } else { 7 }
    }
    cublasGemmStridedBatchedEx(_handle: usize, left_op: c_int, right_op: c_int, rows: c_int, columns: c_int, depth: c_int,
                               _alpha: *const f32, left: u64, kind: c_int, left_leading: c_int, _left_step: i64,
                               right: u64, _kind: c_int, right_leading: c_int, _right_step: i64, beta: *const f32,
                               out: u64, _out_kind: c_int, leading: c_int, _step: i64, batch: c_int, _compute: c_int,
                               _algorithm: c_int) {
        // SAFETY: as with the real libraries, callers pass places and addresses that are theirs.
        if kind != 0 || batch != 1 || leading != rows || unsafe { *beta } != 0.0 {
            return 15;
        }
        let product = Product {
            sizes: [rows, columns, depth].map(|size| size as u64),
            left: (left, left_op == 1, left_leading as u64),
            right: (right, right_op == 1, right_leading as u64),
            out,
        };
        let mut graphs = GRAPHS.lock().unwrap();
        let stream = graphs.products;
        if graphs.give(stream, Work::Product(product)).is_ok() { SUCCESS } else { 13 }
    }
}
