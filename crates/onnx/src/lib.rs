//! Runs ONNX models.
//!
//! A [`Session`] runs on one of three engines; [`Session::engine`] and [`Session::why`] report the choice:
//!
//! * our own evaluator (`native`) for all operators of skl2onnx (scikit-learn), for dense networks and small
//!   convolutional ones: it runs on the calling thread and takes microseconds;
//! * rten (`rten_engine`) for all other networks;
//! * ONNX Runtime (`ort_engine`) for every model, when its shared library is found.
//!
//! | module | responsibility |
//! |---|---|
//! | `proto` | reads the file into structures that borrow from its bytes, within limits |
//! | `external` | reads weights from files beside the model, and from nowhere else |
//! | `spec` | names, types and shapes of inputs and outputs; checks the inputs of a run |
//! | `session` | chooses the engine, loads, runs |
//! | `native` | plans a graph once, executes the plan in each run; the operators |
//! | `complete` | writes out optional attributes that rten requires |
//! | `rten_engine`, `ort_engine` | the other two engines behind the same interface |
//! | `subprocess` | rten in a worker process with memory and time limits |
//!
//! Files are data: nothing in them is executed, every size they claim is checked against what is there, and a
//! hostile one is an error.

mod complete;
mod error;
mod external;
mod native;
mod ort_engine;
mod proto;
mod rten_engine;
mod session;
mod spec;
mod subprocess;

pub use error::{LoadError, RunError};
pub use native::{OpError, PlanError, UnsupportedOp};
pub use ort_engine::RuntimeLibrary;
pub use proto::{ParseError, TensorFault};
pub use session::{Engine, EngineChoice, Options, Session};
pub use subprocess::{WorkerCommand, serve as serve_worker};
