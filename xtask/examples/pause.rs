//! The first process of a pod on the test cluster's node: its containers share the namespaces that it holds by being
//! there. Whoever ends the pod kills it, so it need not listen to anything.

fn main() {
    loop {
        std::thread::park();
    }
}
