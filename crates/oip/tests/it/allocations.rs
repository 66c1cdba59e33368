//! Memory is bounded by the input size, not by claimed sizes; common requests need few allocations.

use bytes::Bytes;
use gantry_oip::{InferRequest, InferResponse, Limits, rest};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
};

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

#[allow(unsafe_code, reason = "an allocator that counts is the only way to see allocations; test only")]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        BYTES.with(|b| b.set(b.get() + layout.size()));
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|c| c.set(c.get() + 1));
        BYTES.with(|b| b.set(b.get() + size));
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations and bytes on this thread.
fn counted<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = (COUNT.get(), BYTES.get());
    let result = work();
    (result, COUNT.get() - before.0, BYTES.get() - before.1)
}

#[test]
fn claimed_shape_does_not_allocate() {
    let limits = Limits { elements: usize::MAX, bytes_elements: usize::MAX, ..Limits::default() };
    for datatype in ["FP64", "BYTES"] {
        for json in [
            format!(
                r#"{{"inputs":[{{"name":"X","shape":[1000000000000],"datatype":"{datatype}","data":[]}}]}}"#
            ),
            format!(
                r#"{{"inputs":[{{"name":"X","shape":[1000000000000],"datatype":"{datatype}","parameters":{{"binary_data_size":0}}}}]}}"#
            ),
        ] {
            let body = Bytes::from(json);
            let length = body.len();
            let (result, _, bytes) = counted(|| rest::decode_request(body, Some(length), &limits));
            assert!(result.is_err());
            assert!(bytes < 4096, "{datatype}: {bytes} bytes for a body of {length}");
        }
    }
}

#[test]
fn common_request_needs_few_allocations() {
    let body = Bytes::from_static(
        br#"{"inputs":[{"name":"X","shape":[1,4],"datatype":"FP32","data":[5.1,3.5,1.4,0.2]}]}"#,
    );
    let (request, count, _) = counted(|| rest::decode_request(body, None, &Limits::default()).unwrap());
    assert!(count <= 6, "decoding took {count} allocations");
    let response =
        InferResponse { model_name: "iris_1".into(), outputs: request.inputs.clone(), ..Default::default() };
    let (encoded, count, _) = counted(|| rest::encode_response(&response, &InferRequest::default()).unwrap());
    assert!(count <= 2, "encoding took {count} allocations");
    assert!(encoded.header_length.is_none());
}
