mod kinds;
mod live;
mod mutants;
mod samples;
