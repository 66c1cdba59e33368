//! Runs ONNX models.
//!
//! Three engines stand behind one [`Session`]; [`Session::engine`] says which one serves a model and
//! [`Session::why`] says why:
//!
//! * our own evaluator (`native`) for everything that skl2onnx writes for scikit-learn, for dense networks and small convolutional ones:
//!   it runs on the calling thread and takes microseconds;
//! * rten (`rten_engine`) for all other networks;
//! * ONNX Runtime (`ort_engine`) for every model, when its shared library is found.
//!
//! The way of a model through the crate:
//!
//! | module | what it does |
//! |---|---|
//! | `proto` | reads the file into structures that borrow from its bytes, within limits |
//! | `external` | reads weights from files beside the model, and from nowhere else |
//! | `spec` | names, types and shapes of inputs and outputs; checks what a caller brings |
//! | `session` | chooses the engine, loads, runs |
//! | `native` | plans a graph once, walks the plan in each run; the operators |
//! | `rten_engine`, `ort_engine` | the other two engines behind the same interface |
//! | `apart` | rten in a process of its own, where what it takes is bounded |
//!
//! Files are data: nothing in them is executed, every size they claim is checked against what is there, and a
//! hostile one is an error.

mod apart;
mod error;
mod external;
mod native;
mod ort_engine;
mod proto;
mod rten_engine;
mod session;
mod spec;

pub use apart::{Apart, serve as serve_apart};
pub use error::{LoadError, RunError};
pub use native::{OpError, PlanError, UnsupportedOp};
pub use ort_engine::RuntimeLibrary;
pub use proto::{ParseError, TensorFault};
pub use session::{Engine, EngineChoice, Options, Session};
