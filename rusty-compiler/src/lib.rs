//! Graph to plan to executable: passes, fusion, memory planning, kernel selection, CPU and CubeCL kernels.
