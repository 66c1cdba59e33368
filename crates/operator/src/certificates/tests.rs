mod overlap;
mod rotation;
mod signing;
mod steps;
