//! The sandbox process of a pod on the test cluster's node: it holds the pod's namespaces until it is killed.

fn main() {
    loop {
        std::thread::park();
    }
}
