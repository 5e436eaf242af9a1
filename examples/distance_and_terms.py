"""The distance to the limit law, the two terms that bound it, and the a posteriori certificate."""

import metastable as ms

head = ms.Head.from_spectra(interaction=[1.5, 0.6], value=[1.2, 0.5], seed=2)
run = ms.simulate(head, ms.graded(500, head), beta=100.0, until=10.0, t_eval=11)

distance, laplace, lyapunov = run.distance(), run.laplace_term(), run.lyapunov_term()
certificate = run.certificate()
print("   t     W2   Laplace  Lyapunov  certificate")
for i, t in enumerate(run.times.tolist()):
    print(f"{t:4.1f} {distance[i]:7.4f} {laplace[i]:8.4f} {lyapunov[i]:9.4f} {certificate[i]:12.4g}")
print("the certificate says nothing after t =", certificate.attrs["vacuous_after"])
print(*run.phases().sentences, sep="\n")
