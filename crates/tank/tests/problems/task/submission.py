def custom_kernel(data):
    return data[1].add(data[0])
